"""mAP of models as files: python -m studies.deployed demo=runs/demo/last.pth --json docs/deployed.json

Every checkpoint is evaluated on its own test split by torch, and as files of ONNX Runtime and, if it and NNCF are installed,
OpenVINO, in float32, bfloat16 and int8. int8 is calibrated on the training split.
"""

import argparse
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.rows import headline
from demo_sdtps.commands.export import PACKAGES
from demo_sdtps.config import UserError, cli, load_cfg, with_values
from demo_sdtps.evaluation.tables import markdown_table
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.progress import progress

TORCH = {"float32": "off", "bfloat16": "bf16"}
"""Its precisions, and TEST.AMP for them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("models", nargs="+", metavar="NAME=CHECKPOINT")
    cli.add_output(parser, "--json", ".json", help="write it to this file")
    arguments = cli.read_arguments(parser)
    check_extra(parser.prog, "onnx", PACKAGES)
    for word in arguments.models:
        if not all(word.partition("=")):
            raise UserError(
                f"{word} is not NAME=CHECKPOINT; write for example demo=runs/demo/last.pth."
            )

    import torch

    from benchmarks.deploy import open_files, runtime_versions, write_files
    from benchmarks.rows import conditions
    from demo_sdtps.datasets import read_splits
    from demo_sdtps.evaluation.extraction import extract_features
    from demo_sdtps.evaluation.protocol import make_test_data, rank_features
    from demo_sdtps.modeling.checkpoints.loading import stored_config
    from demo_sdtps.retrieval.extractor import make_extractor
    from demo_sdtps.retrieval.onnx_export import calibration_feeds
    from demo_sdtps.runtime.threads import cpu_cores

    rows = []
    for word in progress(arguments.models, "models"):
        name, _, weight = word.partition("=")
        stored = stored_config(Path(weight))
        cfg = load_cfg(stored, ["TEST.WEIGHT", weight, "MODEL.DEVICE", "cpu"])
        reid, splits = make_extractor(cfg), read_splits(cfg, ("train", "query", "gallery"))
        train, commit = splits.pop("train"), reid.origin["commit"]
        data = make_test_data(cfg, **splits)
        with TemporaryDirectory() as folder:
            files = Path(folder, "files")
            write_files(reid, files, partial(calibration_feeds, cfg, samples=train))
            models = [(f"torch {precision}", amp, reid.model) for precision, amp in TORCH.items()]
            models += [(each, "off", file) for each, file in open_files(files, cpu_cores())]
            for precision, amp, model in progress(models, name):
                (patterns,) = extract_features(
                    with_values(cfg, {"TEST.AMP": amp}), model, data.loader
                )
                ranking = rank_features(cfg, patterns[cfg.TEST.RETURN_PATTERN], data)
                row = {
                    "model": name,
                    "commit": commit,
                    "precision": precision,
                    "mAP": float(ranking.mAP),
                }
                rows.append(row | {"Rank-1": float(ranking.rank(1))})
    content = conditions(torch.device("cpu"), quick=False) | {"rows": rows}
    content["versions"] |= runtime_versions()
    if arguments.json:
        write_json(arguments.json, content)
    cli.print_lines(*table(content).splitlines())


def table(content: dict[str, Any]) -> str:
    """Percent, a line for each model and precision, with the change by the precision."""
    first: dict[str, float] = {}
    lines = []
    for row in content["rows"]:
        # + 0.0: no -0.00
        change = round(100 * (row["mAP"] - first.setdefault(row["model"], row["mAP"])), 2) + 0.0
        figures = (100 * row["mAP"], 100 * row["Rank-1"])
        lines.append(
            [row["model"], row["precision"], *(f"{x:.1f}" for x in figures), f"{change:+.2f}"]
        )
    headers = ("model", "runtime and precision", "mAP", "Rank-1", "change of mAP")
    return f"{markdown_table(headers, lines)}\n\n{headline(content)}"


if __name__ == "__main__":
    cli.run(main)
