"""Speed and memory beside the field's plain formulation, measured in turns in one run: a table and JSON.

    python benchmarks/run.py
    python benchmarks/run.py ranking data --quick
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
from collections.abc import Iterable
from pathlib import Path

import torch

from demo_sdtps.benchmarks import model as benchmark_model
from demo_sdtps.benchmarks.data import data_rows
from demo_sdtps.benchmarks.modules import fusion_rows, sdtps_rows
from demo_sdtps.benchmarks.ranking import ranking_rows, reranking_rows
from demo_sdtps.benchmarks.rows import Row, as_markdown
from demo_sdtps.benchmarks.seps import seps_rows
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.cli import run
from demo_sdtps.config.files import check_output_file, write_json
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.loaders import cpu_cores
from demo_sdtps.engine.run.record import command, commit, machine, versions
from demo_sdtps.engine.runtime import choose_device, choose_precision

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "RGBNT201"

PARTS = {
    "model": "inference and training of CLIP ViT-B/16 with HDM and ATMoE, in float32 and bfloat16",
    "fusion": "HDM and ATMoE alone",
    "sdtps": "SDTPS alone, and its share of the whole forward",
    "seps": "similarities of images and captions",
    "evaluation": "the evaluation of an epoch, from images to mAP",
    "ranking": "mAP and CMC, up to a million gallery samples",
    "reranking": "k-reciprocal re-ranking",
    "data": "decoding, augmentation, and how long training waits for data",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure this code beside the plain formulation of benchmarks/plain, which does what DeMo's code does, in "
                    "the same run, and print a Markdown table: seconds or memory of both, how many times better ours is, "
                    "and the target. Without names of parts all are measured, which takes some ten minutes on two cores.",
        epilog="parts:\n" + "\n".join(f"  {name:12}{text}" for name, text in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure (default: everything)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it runs: no results")
    parser.add_argument("--json", type=Path, metavar="X.json", help="write the numbers there as well")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in PARTS:
            raise UserError(f"There is no part {part!r} to measure; choose from {', '.join(PARTS)}.")
    if arguments.json:
        check_output_file(arguments.json, ".json")
    logging.getLogger().setLevel(logging.WARNING)
    found = {part: [] for part in PARTS if part in arguments.parts or not arguments.parts}
    for part, rows in progress(found.items(), "measuring", unit="part"):
        rows += measure(part, arguments.quick)
    device = choose_device(load_cfg(CONFIGS / "DeMo.yml"))
    record = {"command": command(), **commit(), "versions": versions(device), "quick": arguments.quick,
              "machine": {**machine(device), "cores": cpu_cores(), "bfloat16": choose_precision("auto", device) is not None},
              "parts": {part: [row._asdict() for row in rows] for part, rows in found.items()}}
    print(as_report(record))
    if arguments.json:
        write_json(arguments.json, record)


def measure(part: str, quick: bool) -> Iterable[Row]:
    """The rows of one part."""
    if part == "fusion":
        return fusion_rows(load_cfg(CONFIGS / "DeMo.yml"), quick)
    if part == "sdtps":
        return sdtps_rows(load_cfg(CONFIGS / "DeMo_SDTPS.yml"), quick)
    return {"model": benchmark_model.model_rows, "evaluation": benchmark_model.evaluation_rows, "ranking": ranking_rows,
            "reranking": reranking_rows, "seps": seps_rows, "data": data_rows}[part](quick)


def as_report(record: dict) -> str:
    """What --json writes, as Markdown: one line on command, machine and versions, and the table."""
    made, what = record["versions"], record["machine"]
    half = "with" if what["bfloat16"] else "without"
    where = f"{what['cores']} cores, {what['cpu']}, {half} bfloat16 instructions" if what["device"] == "cpu" else what["name"]
    head = (f"`{record['command']}` on {where}, {what['threads']} threads; "
            + ", ".join(f"{name} {version}" for name, version in made.items() if version) + ".")
    return f"{head}\n\n{as_markdown([Row(**row) for rows in record['parts'].values() for row in rows])}"


if __name__ == "__main__":
    torch.set_float32_matmul_precision("highest")
    run(main)
