"""Run variants × seeds of a configuration and compare them: python tools/study.py studies/modules.yml [--seeds N]

A study is a YAML file (see studies/):

    title: What the modules are worth
    config: configs/Synthetic/DeMo_SDTPS.yml    # of every variant that names no other
    seeds: 5                                    # 1 … 5, or a list
    set: {SOLVER.EVAL_PERIOD: 100}              # KEY: VALUE for all variants
    variants:                                   # in the table's order; the first is what the others are compared with
      Baseline: {config: configs/Synthetic/Baseline.yml}
      + SDTPS: {}
      + Gumbel-STE: {set: {MODEL.SDTPS_USE_GUMBEL: True}}

and, where wanted, `patterns: [3]` (return patterns in the tables; all three), `missing: True` (evaluate the cases of missing
modalities), `selection: True` (tools/selection_quality.py), and for a variant `script: FILE` (run in place of train_net.py)
and `evaluate: {KEY: VALUE}` (for these two evaluations alone).

A study can be ended and started again: what is finished is not run again. A run is known by its configuration, seed and
script; after a change of the code or the data give another --runs.
"""
if not __package__:  # run as a script: of its checkout demo_sdtps alone is found, no folder under its common name
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))
    import demo_sdtps  # noqa: F401

    sys.path[:] = [folder for folder in sys.path if folder not in (str(ROOT), str(Path(__file__).resolve().parent))]

import argparse
import logging
import signal
import sys
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config.cli import positive_int, run
from demo_sdtps.config.files import atomic_write, check_output_file, write_json
from demo_sdtps.datasets import identity_labels, read_splits
from demo_sdtps.datasets.loaders import cpu_cores
from demo_sdtps.engine.run.record import command
from demo_sdtps.modeling import make_model
from demo_sdtps.tools.profile_flops import count_macs, count_parameters
from demo_sdtps.tools.study_file import QUICK, QUICK_SEEDS, QUICK_VARIANTS, TRAINING, make_variants, read_study, words_of
from demo_sdtps.tools.study_plots import draw_losses, draw_missing, draw_results
from demo_sdtps.tools.study_runs import gather, run_all
from demo_sdtps.tools.study_tables import as_markdown, commits_of

logger = logging.getLogger("study")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, metavar="STUDY.yml", help="the study, one of studies/*.yml for example")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seeds", type=positive_int, metavar="N", help="run seeds 1 … N in place of the study's")
    length.add_argument("--quick", action="store_true", help="the first two variants, two seeds, one epoch: to see that a "
                        "study works; the output's folder ends in -quick")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the tables and plots; default: "
                        "runs/studies/<name of the study>")
    parser.add_argument("--runs", type=Path, default=Path("runs/studies/runs"), metavar="DIR",
                        help="folder of the runs; studies that share it share runs of the same configuration (default: "
                             "runs/studies/runs)")
    parser.add_argument("--jobs", type=positive_int, metavar="N", default=1 if torch.cuda.is_available() else cpu_cores(),
                        help="runs at a time (default: 1 on a GPU, else one per CPU core)")
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="configuration keys and values for all variants")
    arguments = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an orderly end of the runs, as by Ctrl-C

    study = read_study(arguments.study)
    name, opts = arguments.study.stem, arguments.opts
    seeds = list(range(1, arguments.seeds + 1)) if arguments.seeds else study["seeds"]
    if arguments.quick:
        study["variants"] = dict(list(study["variants"].items())[:QUICK_VARIANTS])
        name, opts, seeds = f"{name}-quick", [*words_of(QUICK), *opts], list(range(1, QUICK_SEEDS + 1))
    variants = make_variants(study, opts, arguments.runs)
    output = arguments.output or Path("runs/studies") / name
    for path in (output / "study.json", arguments.runs / "study.json"):
        check_output_file(path, ".json")
    costs = {variant.name: cost(variant.cfg) for variant in variants if variant.script == TRAINING}

    failed = run_all(variants, seeds, arguments.jobs, study)
    result = {"title": study["title"], "command": command(), "seeds": seeds, "patterns": study["patterns"],
              "variants": [{"name": v.name} | costs.get(v.name, {}) | gather(v, seeds, failed, study) for v in variants]}
    table = as_markdown(result)
    write_json(output / "study.json", result)
    with atomic_write(output / "study.md") as temporary:
        temporary.write_text(table, encoding="utf-8")
    drawn = [draw_results(result, output / "results.png"), draw_losses(result, output / "loss.png")]
    drawn += [draw_missing(result, output / "missing.png")] if study["missing"] else []
    print(table)
    print(*(output / "study.md", output / "study.json", *drawn), sep="\n")
    if len(commits_of(result)) > 1:
        logger.warning("The runs were made by different code (%s); for runs of one give another --runs.",
                       " and ".join(commits_of(result)))
    if failed:
        sys.exit(1)


def cost(cfg: CfgNode) -> dict[str, float]:
    """Trainable parameters and GMACs of one complete triplet, for the data set's identities. Raises `UserError`."""
    samples = read_splits(cfg, ("train",))["train"]
    model = make_model(cfg, len(identity_labels(samples)), 1 + max(sample.camera for sample in samples)).eval()
    return {"parameters": sum(count_parameters(model).values()), "gmacs": count_macs(cfg, model)[""] / 1e9}


if __name__ == "__main__":
    run(main)
