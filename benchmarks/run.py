"""Speed and memory relative to the plain formulation, as a table: python benchmarks/run.py [model ranking …] [--quick]"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import logging
import os
from collections.abc import Callable, Iterable

import torch

from demo_sdtps.benchmarks.any_vit import any_vit_rows
from demo_sdtps.benchmarks.busy import busy_rows
from demo_sdtps.benchmarks.model import evaluation_rows, model_rows
from demo_sdtps.benchmarks.modules import fusion_rows
from demo_sdtps.benchmarks.ranking import ranking_rows, reranking_rows
from demo_sdtps.benchmarks.rows import Row, as_markdown
from demo_sdtps.benchmarks.slimming import slimming_rows
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.cli import add_output, check_outputs, run
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.progress import progress
from demo_sdtps.runtime.threads import cpu_cores
from demo_sdtps.training.record import command, commit, machine, versions

PARTS: dict[str, tuple[str, Callable[[bool, torch.device], Iterable[Row]]]] = {  # description; rows by `quick` and device
    "model": ("inference and training of CLIP ViT-B/16 with HDM and ATMoE, in float32 and bfloat16", model_rows),
    "slimming": ("slimming of ViT-B/16 beside the dense backbone: inference and training, in float32 and bfloat16",
                 slimming_rows),
    "any_vit": ("demo_sdtps.slim on Vision Transformers of timm: operations and speed in float32", any_vit_rows),
    "fusion": ("HDM and ATMoE alone", lambda quick, _: fusion_rows(load_cfg("RGBNT201/DeMo.yml"), quick)),
    "evaluation": ("the evaluation of an epoch, from images to mAP", evaluation_rows),
    "ranking": ("mAP and CMC", ranking_rows),
    "reranking": ("k-reciprocal re-ranking", reranking_rows),
    "busy": ("training beside other processes, by how threads wait for each other", lambda quick, _: busy_rows(quick)),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure this code and the plain formulation of benchmarks/plain, which computes as DeMo's code does, in\n"
                    "one run, and print a Markdown table: seconds or memory of both, their ratio, and the target. All parts\n"
                    "take about twenty minutes on two cores.",
        epilog="parts:\n" + "\n".join(f"  {name:12}{text}" for name, (text, _) in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, as a test without results")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="auto (default) is a GPU if there is one")
    add_output(parser, "--json", ".json", help="write the numbers as JSON too")
    arguments = parser.parse_args()
    check_outputs(arguments)
    for part in arguments.parts:
        if part not in PARTS:
            raise UserError(f"There is no part {part!r} to measure; choose from {', '.join(PARTS)}.")
    logging.getLogger().setLevel(logging.WARNING)
    device = choose_device(load_cfg(None, ["MODEL.DEVICE", arguments.device]))
    if device.type == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the parts' configurations choose a GPU where they see one
    parts = [part for part in PARTS if part in arguments.parts or not arguments.parts]
    found = {part: list(PARTS[part][1](arguments.quick, device)) for part in progress(parts, "measuring", unit="part")}
    record = about(device, arguments.quick) | {"parts": {part: [row._asdict() for row in rows] for part, rows in found.items()}}
    if arguments.json:
        write_json(arguments.json, record)
    print(as_report(record))


def about(device: torch.device, quick: bool) -> dict:
    """What a record of measurements on `device` begins with: command, commit, versions and machine."""
    return {"command": command(), **commit(), "versions": versions(device), "quick": quick,
            "machine": {**machine(device), "cores": cpu_cores(),
                        "bfloat16": choose_precision("auto", device) is torch.bfloat16}}


def headline(record: dict) -> str:
    """Command, machine and versions of a record."""
    made, what = record["versions"], record["machine"]
    half = "with" if what["bfloat16"] else "without"
    where = f"{what['cores']} cores, {what['cpu']}, {half} bfloat16 instructions" if what["device"] == "cpu" else what["name"]
    return (f"`{record['command']}` on {where}, {what['threads']} threads; "
            + ", ".join(f"{name} {version}" for name, version in made.items() if version) + ".")


def as_report(record: dict) -> str:
    """Record of --json as Markdown: command, machine and versions, and the table."""
    return f"{headline(record)}\n\n{as_markdown([Row(**row) for rows in record['parts'].values() for row in rows])}"


if __name__ == "__main__":
    torch.set_float32_matmul_precision("highest")
    run(main)
