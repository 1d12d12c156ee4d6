"""Runs beside each other on the page of tools/report.py: their curves, and their numbers on one test split."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from demo_sdtps.config import UserError, load_cfg, with_values
from demo_sdtps.datasets import Sample
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.extraction import CASES, extract_features
from demo_sdtps.evaluation.protocol import make_test_data
from demo_sdtps.evaluation.tables import Record, missing_rows
from demo_sdtps.modeling.checkpoint import stored_config
from demo_sdtps.reports.analysis import case_records
from demo_sdtps.reports.curves import evaluated_run
from demo_sdtps.training.output import LAST


class Run(NamedTuple):
    """A finished run: its OUTPUT_DIR, its metrics.json, and its last weights evaluated."""

    name: str
    records: list[dict[str, Any]]
    cases: dict[str, Record]  # by the names of `missing_rows`


def other_run(folder: str, opts: Sequence[str], samples: Sequence[Sample]) -> Run:
    """A run evaluated with KEY VALUE pairs `opts` on the test `samples`. Raises `UserError` where it is not finished, or its
    test split has others."""
    records, weights = evaluated_run(Path(folder)), Path(folder) / LAST
    cfg = with_values(load_cfg(stored_config(weights), opts), {"TEST.WEIGHT": str(weights)})
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    own, first = ([(one.identity, one.camera, Path(one.paths[0]).name) for one in found] for found in (data.samples, samples))
    if own != first:
        raise UserError(f"--run {folder} has another test split than the first --run; give runs of one data set, or "
                        "DATASETS.NAMES and DATASETS.ROOT_DIR for all of them.")
    features = extract_features(cfg, model, data.loader, list(CASES.values()))
    return Run(folder, records, missing_rows(case_records(cfg, data, dict(zip(CASES, features, strict=True)))))
