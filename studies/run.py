"""Run variants × seeds of a configuration and compare them: python -m studies.run STUDY.yml

A study is a YAML file:

    title: Contribution of the modules
    config: configs/Synthetic/DeMo_SDTPS.yml    # default configuration of the variants
    seeds: [1, 2, 3, 4, 5]
    set: {SOLVER.EVAL_PERIOD: 100}              # KEY: VALUE for all variants
    variants:                                   # the rows of the tables in order; the others are compared with the first
      Baseline: {config: configs/Synthetic/Baseline.yml}
      + SDTPS: {}
      + Gumbel-STE: {set: {MODEL.SDTPS_USE_GUMBEL: True}}

Optional keys of a study:

    grid: [0.001, 0.002, 0.003]   learning rates: every variant is run with the middle one and its neighbours, then with
                                  those of the best so far, with the first seed; the best three also with the other seeds
    tuned: True                   a variant has the rate that a study with a grid chose for its name or its `rate_of`, in
                                  rates*.json beside the result or in docs/results
    return_patterns: [3]          those in the tables (default: all three)
    missing: True                 evaluate the cases of missing modalities
    cross_modal: True             evaluate any set of modalities against any, by each distance
    similarity: True              measure how alike the outputs are (studies/measure.py)
    identities: True              measure the average precision by identity, for intervals by a bootstrap over identities
    roots: [DIR0, DIR1]           folds of the data: the run of a seed s has DATASETS.ROOT_DIR the (s modulo their number)-th
    validation: True              the metrics of the training's end are those of the identities that DATASETS.VALIDATION leaves
                                  out, for choices

and of a variant:

    seeds                         in place of the study's
    start: dense, teacher: dense  the variant before it from whose run of the same seed it starts, or which it learns from
    against: dense                what it is compared with, in place of the first
    evaluate: {KEY: VALUE}        for its evaluation alone, such as token pruning without training

A study can be stopped and started again: the result, --json, holds every run that is finished, which is not made again. A
run is identified by its configuration, its seed and the version of the package; a result of another version is refused.
After a change of the data or of the sources give another --runs and --json.
"""

import argparse
import csv
import hashlib
import logging
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps import __version__
from demo_sdtps.commands import cli
from demo_sdtps.config import RETURN_PATTERNS, UserError, load_cfg, with_values
from demo_sdtps.config.common import COMMAND
from demo_sdtps.config.load import read_yaml
from demo_sdtps.runtime.files import check_output_file

ROOT = Path(__file__).resolve().parents[1]
RATE = "SOLVER.BASE_LR"
ROOTS = "DATASETS.ROOT_DIR"
MEASUREMENTS = ("missing", "cross_modal", "similarity", "identities", "validation")
"""What is measured of every run beside, or in place of, its last epoch on the test data."""
DEFAULTS: dict[str, Any] = {
    "title": "",
    "config": "",
    "seeds": [1, 2, 3],
    "set": {},
    "return_patterns": list(RETURN_PATTERNS),
    **dict.fromkeys((*MEASUREMENTS, "tuned"), False),
    "grid": [],
    "roots": [],
    "variants": {},
}
SOURCES = {"start": "TEST.WEIGHT", "teacher": "MODEL.TEACHER"}
"""Keys of a variant that name another: the key of the configuration that gets the last epoch of its run of the same seed."""
VARIANT_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("config", "rate_of", "against", *SOURCES), ""),
    "set": {},
    "evaluate": {},
    "seeds": [],
}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    meaning = "the study, such as studies/modules.yml"
    parser.add_argument("study", type=Path, metavar="STUDY.yml", help=meaning)
    meaning = "folder of the runs, which studies with equal configurations share (default: runs/studies/runs)"
    folder = Path("runs/studies/runs")
    parser.add_argument("--runs", type=Path, default=folder, metavar="DIR", help=meaning)
    meaning = "the result, whose runs are kept (default: runs/studies/<name of the study>.json)"
    parser.add_argument("--json", type=Path, metavar="FILE", help=meaning)
    cli.add_output(parser, "--csv", ".csv", help="write the table to this file")
    cli.add_count(parser, "--jobs", None, "parallel runs (default: 1 with a GPU, else 1 per core)")
    meaning = "configuration keys and values for all variants"
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help=meaning)
    arguments = cli.read_arguments(parser)
    path = arguments.json or Path("runs/studies", f"{arguments.study.stem}.json")
    check_output_file(path, ".json", overwrite=True)
    study = read_study(arguments.study)

    from studies.report import chosen_rates, study_markdown, study_table
    from studies.runs import make_result

    rates = chosen_rates(ROOT / "docs" / "results") | chosen_rates(path.parent)
    variants = make_variants(study, arguments.opts, arguments.runs, rates)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # SIGTERM stops the runs as Ctrl-C does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result = make_result(study, variants, path, arguments.jobs)
    cli.print_lines(study_markdown(result), path)
    if arguments.csv:
        table = study_table(result)
        with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([table.headers, *table.rows])
    if any("failed" in run for one in result["variants"] for run in one["runs"].values()):
        sys.exit(1)


@dataclass(frozen=True)
class Variant:
    """One row of the tables: a configuration, its command-line arguments, and the seeds of its runs."""

    name: str
    cfg: CfgNode  # of the evaluation
    arguments: tuple[str, ...]  # of the training, which the evaluation has too
    # what the evaluation has besides, such as token pruning without training; (): that at the training's end counts
    evaluation: tuple[str, ...]
    folder: Path
    seeds: tuple[int, ...]
    # hash of what determines the numbers of a run beside its seed, the version and the data
    configuration: str
    rate: float | None  # learning rate, where the study chooses it or takes a chosen one
    family: str  # in a study that chooses rates: what is tuned, of which this is one rate
    roots: tuple[str, ...] = ()  # folds of the data
    # by key of the configuration, the variant from whose run of the same seed this one's starts, or learns
    sources: Mapping[str, "Variant"] = field(default_factory=dict)
    against: str = ""  # the variant that it is compared with; '': the first

    def run_folder(self, seed: int) -> Path:
        return self.folder / f"seed_{seed}"

    def fold(self, seed: int) -> list[str]:
        """The arguments of the data of a run, where they depend on its seed."""
        return [ROOTS, self.roots[seed % len(self.roots)]] if self.roots else []

    @property
    def facts(self) -> dict[str, Any]:
        """What a result says of the variant."""
        weights = (word for key, one in self.sources.items() for word in (key, f"<{one.name}>"))
        facts: dict[str, Any] = {
            "name": self.name,
            "family": self.family,
            "rate": self.rate,
            "configuration": self.configuration,
            "command": shlex.join([COMMAND, "train", *self.arguments, *weights]),
            "evaluation": shlex.join(self.evaluation),
            "roots": list(self.roots),
            "against": self.against,
        }
        return {key: value for key, value in facts.items() if value}


def read_study(path: Path) -> dict[str, Any]:
    """A study file completed by the defaults. Raises `UserError` for keys that are none, and without variants."""
    content = read_yaml(path)
    study = _complete(path, {"title": path.stem} | content, DEFAULTS)
    if not study["variants"]:
        raise UserError(f"The study {path} has no variants; python -m studies.run --help has some.")
    for name, settings in study["variants"].items():
        study["variants"][name] = _complete(path, settings or {}, VARIANT_DEFAULTS)
    return study


def _complete(path: Path, content: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """A section of a study completed by `default`, whose keys it has."""
    if unknown := [key for key in content if key not in default]:
        raise UserError(
            f"The study {path} has {unknown[0]!r}, which is no key there; the keys are {', '.join(default)}."
        )
    return default | content


def make_variants(
    study: Mapping[str, Any],
    opts: Sequence[str],
    runs: Path,
    rates: Mapping[str, float] = {},
) -> list[Variant]:
    """The variants with their configurations, all checked before the first run. `opts` are KEY, VALUE, … of all of them, `runs`
    is the folder of the runs, `rates` are the chosen ones, by variant; a study with a grid has every variant once with each
    rate, and its first seed. Raises `UserError` where a variant names one that does not exist, or has no chosen rate."""

    def make(name: str, settings: Mapping[str, Any], rate: float | None) -> Variant:
        config = settings["config"] or study["config"]
        values = study["set"] | settings["set"] | ({} if rate is None else {RATE: rate})
        values |= dict.fromkeys([ROOTS] if study["roots"] else [], (study["roots"] or [""])[0])
        pairs, evaluation = [*_words(values), *opts], _words(settings["evaluate"])
        sources = {
            key: earlier[_known(name, settings[role], earlier)]
            for role, key in SOURCES.items()
            if settings[role]
        }
        # what does not differ between the runs of a variant
        training = with_values(load_cfg(config, pairs), {"OUTPUT_DIR": "", "SOLVER.SEED": 0}).dump()
        training += "".join(f"{key} {one.configuration}" for key, one in sources.items())
        training += "".join(study["roots"])
        measured = [key for key in MEASUREMENTS if study[key]]
        is_grid = bool(study["grid"])
        return Variant(
            name=f"{name}, {rate:g}" if is_grid else name,
            cfg=load_cfg(config, [*pairs, *evaluation]),
            arguments=("--config_file", config, *pairs),
            evaluation=evaluation,
            # Variants and studies that agree in what they train, and in the version, share runs, whatever they measure of them.
            folder=runs / f"{Path(config).stem}-{_hash(f'{training}{__version__}')}",
            seeds=tuple(study["seeds"][:1] if is_grid else settings["seeds"] or study["seeds"]),
            configuration=_hash(f"{training}{measured}{' '.join(evaluation)}"),
            rate=rate,
            family=name if is_grid else "",
            roots=tuple(study["roots"]),
            sources=sources,
            against=settings["against"] and _known(name, settings["against"], study["variants"]),
        )

    variants: list[Variant] = []
    for name, settings in study["variants"].items():
        earlier = {one.name: one for one in variants}
        chosen = None
        if study["tuned"]:
            chosen = rates[_known(name, settings["rate_of"] or name, rates)]
        variants += [make(name, settings, rate) for rate in study["grid"] or [chosen]]
    for one, other in combinations(variants, 2):
        if one.configuration == other.configuration:
            raise UserError(
                f"The variants {one.name!r} and {other.name!r} have the same configuration; leave one out."
            )
    return variants


def _known(name: str, other: str, those: Mapping[str, Any]) -> str:
    """`other`, which the variant `name` names, where it is one of `those`."""
    if other not in those:
        raise UserError(
            f"The variant {name!r} needs {other!r}: an earlier variant, to start or learn from it; a variant, "
            "to be compared with it; or a learning rate that a study with a grid chose. Correct the name or the order."
        )
    return other


def _words(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(word) for pair in values.items() for word in pair)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


if __name__ == "__main__":
    cli.run(main)
