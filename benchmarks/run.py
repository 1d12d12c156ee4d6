"""Speed and memory relative to the plain formulation, as a table: python benchmarks/run.py [ranking data …] [--quick]"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import logging
from collections.abc import Callable, Iterable

import torch
from demo_sdtps.benchmarks.limits import limit_rows
from demo_sdtps.benchmarks.scale import scale_rows

from demo_sdtps.benchmarks.busy import busy_rows
from demo_sdtps.benchmarks.data import data_rows
from demo_sdtps.benchmarks.model import evaluation_rows, model_rows
from demo_sdtps.benchmarks.modules import fusion_rows, sdtps_rows
from demo_sdtps.benchmarks.ranking import ranking_rows, reranking_rows
from demo_sdtps.benchmarks.record import about, headline
from demo_sdtps.benchmarks.rows import Row, as_markdown
from demo_sdtps.benchmarks.search import compressed_rows, search_rows
from demo_sdtps.benchmarks.seps import seps_rows
from demo_sdtps.benchmarks.slimming import slimming_rows
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.cli import Parser, add_output, check_outputs, run
from demo_sdtps.config.files import write_json
from demo_sdtps.config.progress import progress
from demo_sdtps.engine.runtime import choose_device

PARTS: dict[str, tuple[str, Callable[[bool], Iterable[Row]]]] = {  # description, and rows by `quick`
    "model": ("inference and training of CLIP ViT-B/16 with HDM and ATMoE, in float32 and bfloat16", model_rows),
    "slimming": ("slimming of ViT-B/16 beside the dense backbone: inference and training, in float32 and bfloat16",
                 slimming_rows),
    "fusion": ("HDM and ATMoE alone", lambda quick: fusion_rows(load_cfg("RGBNT201/DeMo.yml"), quick)),
    "sdtps": ("SDTPS alone, and its share of the whole forward",
              lambda quick: sdtps_rows(load_cfg("RGBNT201/DeMo_SDTPS.yml"), quick)),
    "seps": ("similarities of images and captions", seps_rows),
    "evaluation": ("the evaluation of an epoch, from images to mAP", evaluation_rows),
    "ranking": ("mAP and CMC, up to a million gallery samples", ranking_rows),
    "reranking": ("k-reciprocal re-ranking", reranking_rows),
    "search": ("exact search in a million gallery samples", search_rows),
    "scale": ("a gallery of a million in shards on disk: ranking and search in 2 GiB", scale_rows),
    "compressed": ("search in ten million, compressed by IVF-PQ", compressed_rows),
    "limits": ("limits of the processor for fusion, SEPS, ranking and re-ranking", limit_rows),
    "busy": ("training beside other processes, by how threads wait for each other", busy_rows),
    "data": ("decoding, augmentation, and waiting time of training", data_rows),
}


def main() -> None:
    parser = Parser(
        description="Measure this code and the plain formulation of benchmarks/plain, which computes as DeMo's code does, in\n"
                    "one run, and print a Markdown table: seconds or memory of both, their ratio, and the target. All parts\n"
                    "take about half an hour on two cores.",
        epilog="parts:\n" + "\n".join(f"  {name:12}{text}" for name, (text, _) in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, as a test without results")
    add_output(parser, "--json", ".json", help="write the numbers as JSON too")
    arguments = parser.parse_args()
    check_outputs(arguments)
    for part in arguments.parts:
        if part not in PARTS:
            raise UserError(f"There is no part {part!r} to measure; choose from {', '.join(PARTS)}.")
    logging.getLogger().setLevel(logging.WARNING)
    parts = [part for part in PARTS if part in arguments.parts or not arguments.parts]
    found = {part: list(PARTS[part][1](arguments.quick)) for part in progress(parts, "measuring", unit="part")}
    device = choose_device(load_cfg("RGBNT201/DeMo.yml"))
    record = about(device, arguments.quick) | {"parts": {part: [row._asdict() for row in rows] for part, rows in found.items()}}
    if arguments.json:
        write_json(arguments.json, record)
    print(as_report(record))


def as_report(record: dict) -> str:
    """Record of --json as Markdown: command, machine and versions, and the table."""
    return f"{headline(record)}\n\n{as_markdown([Row(**row) for rows in record['parts'].values() for row in rows])}"


if __name__ == "__main__":
    torch.set_float32_matmul_precision("highest")
    run(main)
