"""What slimming costs without training: python -m studies.off_the_shelf persons=last.pth --json docs/off_the_shelf.json

Every dense checkpoint is evaluated on its own test split with each of SETTINGS, by which the default of `demo_sdtps.slim` is
chosen. Those of docs/off_the_shelf.json are runs of configs/Synthetic/DeMo.yml with INPUT.JOINT_AUGMENTATION and BASE_LR 0.001
on data/tune, data/loose_tune (python -m synthetic --root data/loose_tune --loose --seed 7; six blocks: 20 epochs at 0.002) and
data/vehicles_tune, from the backbones of `make study`; for MODEL.DEPTH 12 these are trained in the same way for 5 epochs.
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.rows import headline
from demo_sdtps.config import cli, load_cfg
from demo_sdtps.evaluation.tables import markdown_table
from demo_sdtps.runtime.files import check_output_file, read_json, write_json
from demo_sdtps.runtime.progress import progress

SETTINGS = tuple(product(("saliency",), (0, 1 / 3, 1 / 2, 2 / 3, 5 / 6), (0.9, 0.7, 0.5)))
"""Score without training, share of the blocks after which patches are dropped, and share of the patches that are kept."""
ALLOWED = 1.0
"""mAP in percent that a setting may lose on each model and that may be the default."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("models", nargs="+", metavar="NAME=CHECKPOINT")
    meaning = "the result, to which models are added that it lacks"
    parser.add_argument("--json", type=Path, required=True, metavar="X.json", help=meaning)
    arguments = cli.read_arguments(parser)
    check_output_file(arguments.json, ".json", overwrite=True)
    import torch

    from benchmarks.rows import conditions

    rows: list[dict[str, Any]] = [
        {"score": score, "depth": depth, "keep": keep, "operations": {}, "mAP": {}}
        for score, depth, keep in (("", 0, 1.0), *SETTINGS)
    ]
    rows = (read_json(arguments.json, dict) or {"rows": rows})["rows"]
    content = conditions(torch.device("cpu"), quick=False) | {"rows": rows}
    for word in progress(arguments.models, "models"):
        name, _, weight = word.partition("=")
        if name not in rows[0]["mAP"]:
            evaluate(name, weight, rows)
        write_json(arguments.json, content)
    cli.print_lines(*table(content).splitlines())


def evaluate(name: str, weight: str, rows: list[dict[str, Any]]) -> None:
    """Add to each row the operations and the mAP, in [0, 1], of a checkpoint with its setting."""
    from demo_sdtps.evaluation.operations import count_macs
    from demo_sdtps.evaluation.protocol import make_test_data
    from demo_sdtps.modeling.checkpoints.loading import stored_config
    from demo_sdtps.reports.slim_curve import load_model_and_data, measure, slim_model

    cfg = load_cfg(stored_config(Path(weight)), ["TEST.WEIGHT", weight, "MODEL.DEVICE", "cpu"])
    dense, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    whole, count = count_macs(cfg, dense)["backbone"], len(dense.backbone.vit.blocks)
    for row in progress(rows, name):
        model = dense
        if row["score"]:
            model = slim_model(cfg, row["score"], [round(count * row["depth"])], [row["keep"]])
        macs = count_macs(cfg, model)
        row["operations"][name] = (macs["backbone"] + macs.get("slimming", 0)) / whole
        row["mAP"][name], _ = measure(cfg, model, data)


def table(content: dict[str, Any]) -> str:
    """The settings by their operations, and what each loses of mAP, in percent, on each model; bold: at most ALLOWED on all."""
    dense, *rows = content["rows"]
    lines = []
    for row in sorted(rows, key=mean_operations):
        losses = [100 * (row["mAP"][name] - dense["mAP"][name]) for name in dense["mAP"]]
        place = f"after {row['depth']:.0%} of the blocks" if row["depth"] else "before the first"
        setting = f"{row['score']}, {row['keep']:.0%} {place}"
        setting = f"**{setting}**" if min(losses) >= -ALLOWED else setting
        figures = (f"{loss:+.1f}" for loss in losses)
        lines.append([setting, f"{mean_operations(row):.0%}", *figures])
    means = ["dense, mAP", "100%", *(f"{100 * value:.1f}" for value in dense["mAP"].values())]
    headers = ("score, patches kept", "operations", *dense["mAP"])
    return f"{markdown_table(headers, [means, *lines])}\n\n{headline(content)}"


def mean_operations(row: dict[str, Any]) -> float:
    return sum(row["operations"].values()) / len(row["operations"])


if __name__ == "__main__":
    cli.run(main)
