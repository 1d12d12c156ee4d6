"""Run variants × seeds of a configuration and compare them: python tools/study.py studies/modules.yml [--seeds N]

A study is a YAML file (see studies/):

    title: Contribution of the modules
    config: configs/Synthetic/DeMo_SDTPS.yml    # default configuration of the variants
    seeds: 5                                    # 1 … 5, or a list
    set: {SOLVER.EVAL_PERIOD: 100}              # KEY: VALUE for all variants
    variants:                                   # the rows of the tables in order; the others are compared with the first
      Baseline: {config: configs/Synthetic/Baseline.yml}
      + SDTPS: {}
      + Gumbel-STE: {set: {MODEL.SDTPS_USE_GUMBEL: True}}

Optional keys: `patterns: [3]` (return patterns in the tables; default: all three), `missing: True` (evaluate the cases of
missing modalities), `selection: True` (run tools/selection_quality.py); of a variant: `evaluate: {KEY: VALUE}` (applies to
these two evaluations only).

A study can be stopped and started again; finished runs are not repeated, and --overwrite replaces the tables and plots of an
earlier end. Two studies may share --runs: one waits for a run that the other works on. A run is identified by its
configuration and seed: after a change of the code or the data give another --runs.
"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import logging
import signal

import torch
from yacs.config import CfgNode

from demo_sdtps.config.cli import add_overwrite, positive_int, print_lines, run
from demo_sdtps.config.files import atomic_write, check_output_file, write_json
from demo_sdtps.config.threads import cpu_cores
from demo_sdtps.datasets import data_folders, identity_labels, read_splits
from demo_sdtps.engine.run.record import command
from demo_sdtps.modeling import make_model
from demo_sdtps.tools.profile_flops import count_macs, count_parameters
from demo_sdtps.tools.study_file import cli_args, make_variants, read_study
from demo_sdtps.tools.study_plots import draw_costs, draw_losses, draw_missing, draw_results
from demo_sdtps.tools.study_runs import gather, run_all
from demo_sdtps.tools.study_tables import as_markdown, commits_of

logger = logging.getLogger("study")
PLOTS = {"results.png": draw_results, "loss.png": draw_losses, "costs.png": draw_costs, "missing.png": draw_missing}
QUICK = {"SOLVER.MAX_EPOCHS": 1, "SOLVER.WARMUP_ITERS": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, metavar="STUDY.yml", help="the study, one of studies/*.yml for example")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seeds", type=positive_int, metavar="N", help="run seeds 1 … N in place of the study's")
    length.add_argument("--quick", action="store_true", help="check that a study works: the first two variants, two seeds, "
                        "one epoch; the name of the output folder ends in -quick")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the tables and plots (default: "
                        "runs/studies/<name of the study>)")
    parser.add_argument("--runs", type=Path, default=Path("runs/studies/runs"), metavar="DIR",
                        help="folder of the runs; studies with the same folder share runs of equal configuration "
                             "(default: runs/studies/runs)")
    parser.add_argument("--jobs", type=positive_int, metavar="N", default=1 if torch.cuda.is_available() else cpu_cores(),
                        help="number of parallel runs (default: 1 with a GPU, else one per CPU core)")
    add_overwrite(parser)
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="configuration keys and values for all variants")
    arguments = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops the runs as Ctrl-C does

    study = read_study(arguments.study)
    name, opts = arguments.study.stem, arguments.opts
    seeds = list(range(1, arguments.seeds + 1)) if arguments.seeds else study["seeds"]
    if arguments.quick:
        study["variants"] = dict(list(study["variants"].items())[:2])
        name, opts, seeds = f"{name}-quick", [*cli_args(QUICK), *opts], [1, 2]
    variants = make_variants(study, opts, arguments.runs)
    output = arguments.output or Path("runs/studies") / name
    inputs = dict.fromkeys([arguments.study, *(folder for variant in variants for folder in data_folders(variant.cfg))])
    plots = {name: draw for name, draw in PLOTS.items() if study["missing"] or draw is not draw_missing}
    files = {name: check_output_file(output / name, Path(name).suffix, arguments.overwrite, inputs)
             for name in ("study.md", "study.json", *plots)}
    check_output_file(arguments.runs / "study.json", ".json", True, inputs)
    costs = {variant.name: cost(variant.cfg) for variant in variants}

    failures = run_all(variants, seeds, arguments.jobs, study)
    result = {"title": study["title"], "command": command(), "seeds": seeds, "patterns": study["patterns"],
              "variants": [{"name": v.name} | costs[v.name] | gather(v, seeds, failures, study) for v in variants]}
    table = as_markdown(result)
    write_json(files["study.json"], result)
    with atomic_write(files["study.md"]) as temporary:
        temporary.write_text(table, encoding="utf-8")
    for name, draw in plots.items():
        draw(result, files[name])
    print_lines(*table.split("\n"), *files.values())
    if len(commits_of(result)) > 1:
        logger.warning("The runs were made by different commits (%s); to run all of them again give another --runs.",
                       " and ".join(commits_of(result)))
    if failures:
        sys.exit(1)


def cost(cfg: CfgNode) -> dict[str, float]:
    """Trainable parameters, and GMACs of one complete triplet; the data set gives the classes. Raises `UserError`."""
    samples = read_splits(cfg, ("train",))["train"]
    model = make_model(cfg, len(identity_labels(samples)), 1 + max(sample.camera for sample in samples)).eval()
    return {"parameters": sum(count_parameters(model).values()), "gmacs": count_macs(cfg, model)[""] / 1e9}


if __name__ == "__main__":
    run(main)
