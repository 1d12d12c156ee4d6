"""Run variants × seeds of a configuration and compare them: demo-sdtps study STUDY.yml

A study is a YAML file:

    title: Contribution of the modules
    config: configs/Synthetic/DeMo_SDTPS.yml    # default configuration of the variants
    seeds: [1, 2, 3, 4, 5]
    set: {SOLVER.EVAL_PERIOD: 100}              # KEY: VALUE for all variants
    variants:                                   # the rows of the tables in order; the others are compared with the first
      Baseline: {config: configs/Synthetic/Baseline.yml}
      + SDTPS: {}
      + Gumbel-STE: {set: {MODEL.SDTPS_USE_GUMBEL: True}}

Optional keys: `grid: [0.001, 0.002, 0.003]` (learning rates: every variant with the middle one and its neighbours, then
those of the best so far, with the first seed; the best three also with the other seeds), `tuned: True` (a variant has
the rate that a study with a grid chose for its name or `rate_of`, in rates*.json beside the result), `seeds` of a
variant, `start: dense` and `teacher: dense` of a variant (the variant before it from whose run of the same seed it
starts, or learns), `against: dense` of a variant (what it is compared with, in place of the first), `evaluate: {KEY:
VALUE}` of a variant (for its evaluation alone), `return_patterns: [3]` (those in the tables; default: all three),
`curve: True` (mAP of every evaluation), `missing: True` (evaluate the cases of missing modalities), `cross_modal: True`
(any set of modalities against any, by each distance); in a checkout `similarity: True` and `calibration: True` (run
studies.measure), and `times: True` (time the variants in turns).

A study can be stopped and started again: the result, --json, holds every run that is finished, which is not made again. A
run is identified by its configuration, its seed and the sources of a checkout that it is made with
(studies/sources.py), whose hash the result records; changes of these that are in no commit, and a result of other
sources, are refused without --changed_tree. After a change of the data give another --runs and --json.
"""

import argparse
import logging
import signal
from pathlib import Path

from demo_sdtps.config.cli import add_count, add_switch, add_tables, read_arguments


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    file = "the study, such as studies/modules.yml of a checkout"
    parser.add_argument("study", type=Path, metavar="STUDY.yml", help=file)
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs/studies/runs"),
        metavar="DIR",
        help="folder of the runs, which studies with equal configurations share (default: runs/studies/runs)",
    )
    result = "the result, whose runs are kept (default: runs/studies/<name of the study>.json)"
    parser.add_argument("--json", type=Path, metavar="FILE", help=result)
    add_tables(parser)
    add_switch(parser, "--changed_tree", "go on with other sources, or with uncommitted changes")
    add_count(parser, "--jobs", None, "parallel runs (default: 1 with a GPU, else 1 per core)")
    keys = "configuration keys and values for all variants"
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help=keys)
    arguments = read_arguments(parser)
    from studies.runs import run_study

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # SIGTERM stops the runs as Ctrl-C does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_study(arguments)
