"""Speed and memory relative to the reference formulation, as a table: python -m benchmarks.run [model ranking …] [--quick]"""

import argparse
import os
from pkgutil import resolve_name

from demo_sdtps.commands.cli import (
    add_choice,
    add_output,
    add_switch,
    print_lines,
    read_arguments,
    run,
)
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.runtime.files import write_json
from demo_sdtps.runtime.progress import progress

TOPICS = {  # description; function from `quick` and device to rows
    "models": ("parameters and operations of the models", "model:models_rows"),
    "model": ("inference and training of CLIP ViT-B/16 with HDM and ATMoE", "model:model_rows"),
    "slimming": ("pruned beside dense ViT-B/16: inference, training", "slimming:slimming_rows"),
    "operators": ("operators of both, counted on fake tensors", "operators:operators_rows"),
    "any_vit": ("demo_sdtps.slim on timm's models: operations, speed", "any_vit:any_vit_rows"),
    "deploy": ("RGB alone by torch, ONNX Runtime and OpenVINO on a CPU", "deploy:deploy_rows"),
    "fusion": ("HDM and ATMoE alone", "model:fusion_rows"),
    "evaluation": ("the evaluation of an epoch, from images to mAP", "model:evaluation_rows"),
    "ranking": ("mAP and CMC", "ranking:ranking_rows"),
    "reranking": ("k-reciprocal re-ranking", "ranking:reranking_rows"),
    "search": ("exact search in a million gallery samples", "search:search_rows"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure this code and the reference formulation of tests/reference, which computes as DeMo's code does,\n"
        "in one run, and print a Markdown table: seconds or memory of both, their ratio, and the target. All parts\n"
        "take about twenty minutes on two cores.",
        epilog="parts:\n" + "\n".join(f"  {name:12}{text}" for name, (text, _) in TOPICS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to measure (default: all)")
    add_switch(parser, "--quick", "small sizes and few rounds, as a test without results")
    add_choice(parser, "--device", ("auto", "cpu", "cuda"), "auto", "auto: a GPU if there is one")
    add_output(parser, "--json", ".json", help="write the numbers as JSON too")
    arguments = read_arguments(parser)
    if unknown := {*arguments.parts} - TOPICS.keys():
        raise UserError(f"There is no part {unknown.pop()!r}; choose from {', '.join(TOPICS)}.")

    from benchmarks.rows import as_report, conditions
    from demo_sdtps.runtime.device import choose_device

    device = choose_device(load_cfg(None, ["MODEL.DEVICE", arguments.device]))
    if device.type == "cpu":
        # the parts' configurations choose a GPU where they see one
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    topics = [topic for topic in TOPICS if topic in arguments.parts or not arguments.parts]
    rows_of = {topic: resolve_name(f"benchmarks.{TOPICS[topic][1]}") for topic in topics}
    record = conditions(device, arguments.quick)
    if "deploy" in topics:
        record["versions"] |= resolve_name("benchmarks.deploy.runtime_versions")()
    parts = {}
    for topic in progress(topics, "measuring", unit="part"):
        parts[topic] = [row._asdict() for row in rows_of[topic](arguments.quick, device)]
        if arguments.json:  # after each, of which the next may be ended by a time limit
            write_json(arguments.json, record | {"parts": parts})
    record["parts"] = parts
    print_lines(as_report(record))


if __name__ == "__main__":
    run(main)
