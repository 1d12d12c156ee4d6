"""Runs side by side on the page of tools/report.py: their curves, their numbers on one test split, and their settings."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg, with_values
from demo_sdtps.config.load import flat
from demo_sdtps.datasets import Sample
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.extraction import CASES, extract_features
from demo_sdtps.evaluation.protocol import make_test_data
from demo_sdtps.evaluation.tables import Record, missing_rows
from demo_sdtps.modeling.checkpoint import stored_config
from demo_sdtps.reports.analysis import case_records
from demo_sdtps.reports.curves import evaluated_run
from demo_sdtps.training.output import LAST

PLACES = {"OUTPUT_DIR", "TEST.WEIGHT"}  # keys in which all runs differ


class Run(NamedTuple):
    """A finished run: its metrics.json, and its last weights evaluated."""

    name: str
    cfg: CfgNode
    records: list[dict[str, Any]]
    cases: dict[str, Record]  # by the names of `missing_rows`


def other_run(folder: Path, opts: Sequence[str], samples: Sequence[Sample]) -> Run:
    """A run evaluated with KEY VALUE pairs `opts` on the test `samples`. Raises `UserError` where it is not finished, or its
    test split has others."""
    records = evaluated_run(folder)
    cfg = with_values(load_cfg(stored_config(folder / LAST), opts),
                      {"OUTPUT_DIR": str(folder), "TEST.WEIGHT": str(folder / LAST)})
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    if [*map(_named, data.samples)] != [*map(_named, samples)]:
        raise UserError(f"--run {folder} has another test split than the first --run; give runs of one data set, or "
                        "DATASETS.NAMES and DATASETS.ROOT_DIR for all of them.")
    features = extract_features(cfg, model, data.loader, list(CASES.values()))
    cases = case_records(cfg, data, dict(zip(CASES, features, strict=True)))
    return Run(run_name(folder), cfg, records, dict(missing_rows(cases)))


def run_name(folder: Path) -> str:
    """A run's folder with the one that it is in, as seeds have one name in each variant's folder."""
    return "/".join(folder.resolve().parts[-2:])


def differing(runs: Sequence[Run]) -> dict[str, list[object]]:
    """The keys in which the configurations differ, with the value of each run."""
    settings = [flat(run.cfg) for run in runs]
    return {key: [own[key] for own in settings] for key, value in settings[0].items()
            if key not in PLACES and any(own[key] != value for own in settings)}


def _named(sample: Sample) -> tuple[object, ...]:
    return sample.identity, sample.camera, Path(sample.paths[0]).name
