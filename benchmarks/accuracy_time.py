"""mAP of a study's variants against their time: python benchmarks/accuracy_time.py docs/results/slimming.json --output X.png"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from yacs.config import CfgNode

from demo_sdtps.benchmarks.model import CAMERAS, CLASSES, random_batch, training_step
from demo_sdtps.benchmarks.rows import in_turns
from demo_sdtps.config import load_cfg
from demo_sdtps.config.cli import add_output, check_outputs, positive_int, print_lines, run
from demo_sdtps.config.scores import MASK, reads_masks
from demo_sdtps.modeling import DeMo, make_model
from demo_sdtps.modeling.inference import inference
from demo_sdtps.reports.study import draw_against, final_metric, read_result
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.runtime.files import write_json
from demo_sdtps.training.optim import make_optimizer
from demo_sdtps.training.record import machine

FLAG = "--config_file"


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time inference (float32) and a training step (in the precision of SOLVER.AMP) of every "
                                "variant of a study in turns, in one process, with random weights and images, and draw the "
                                "study's mAP against the time of inference over that of the first variant.")
    parser.add_argument("study", type=Path, metavar="STUDY.json", help="a study.json of tools/study.py, such as "
                        "docs/results/slimming.json")
    parser.add_argument("--batch", type=positive_int, default=64, metavar="N", help="triplets in a batch (default: 64)")
    parser.add_argument("--rounds", type=positive_int, default=20, metavar="N", help="measurements (default: 20; the median "
                        "counts)")
    add_output(parser, "--output", ".png", required=True, help="the plot")
    add_output(parser, "--json", ".json", help="write the seconds to this file too")
    arguments = parser.parse_args()
    check_outputs(arguments, [arguments.study])
    result = read_result(arguments.study)
    seconds = measure({variant["name"]: config_of(variant) for variant in result["variants"]}, arguments.batch,
                      arguments.rounds)
    dense = next(iter(seconds["inference"].values()))
    if arguments.json:
        write_json(arguments.json, {"study": str(arguments.study), "batch": arguments.batch, "seconds": seconds})
    draw_against([taken / dense for taken in seconds["inference"].values()],
                 f"time of inference over that of {result['variants'][0]['name']}", result, arguments.output)
    print_lines(*table(result, seconds), "", f"{arguments.batch} triplets, {machine(choose_device(load_cfg(None)))['cpu']}, "
                f"{torch.get_num_threads()} threads", str(arguments.output))


def config_of(variant: Mapping[str, Any]) -> CfgNode:
    """The configuration of a variant's runs, by its command."""
    words = shlex.split(variant["command"])
    start = words.index(FLAG)
    return load_cfg(words[start + 1], words[start + 2:])


def measure(variants: Mapping[str, CfgNode], batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of "inference" and "training step" by variant."""
    first = next(iter(variants.values()))
    device = choose_device(first)
    images, cameras, labels = random_batch(first, batch, device)
    masked = {**images, MASK: torch.rand(batch, 1, *first.INPUT.SIZE_TRAIN, device=device)}
    works: dict[str, dict[str, Callable[[], object]]] = {"inference": {}, "training step": {}}
    for name, cfg in variants.items():
        torch.manual_seed(cfg.SOLVER.SEED)
        model = make_model(cfg, CLASSES, CAMERAS).to(device)
        step = training_step(cfg, model, make_optimizer(cfg, model), cameras, labels, choose_precision(cfg.SOLVER.AMP, device),
                             model.head_weights)
        seen = {training: masked if reads_masks(cfg, training) else images for training in (False, True)}
        works["inference"][name] = partial(_infer, model, seen[False], cameras)
        works["training step"][name] = partial(_train, model, step, seen[True])
    return {what: in_turns(what, cases, rounds, device) for what, cases in works.items()}


def _infer(model: DeMo, images: dict[str, torch.Tensor], cameras: torch.Tensor) -> None:
    with inference(model, None):
        model(images, cameras)


def _train(model: DeMo, step: Callable[[dict[str, torch.Tensor]], None], images: dict[str, torch.Tensor]) -> None:
    model.train()
    step(images)


def table(result: Mapping[str, Any], seconds: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Lines of Markdown: mAP, operations, and times over those of the first variant."""
    dense = result["variants"][0]
    lines = ["| variant | mAP | operations | " + " | ".join(seconds) + " |", "|---" * (3 + len(seconds)) + "|"]
    for variant in result["variants"]:
        values = list(final_metric(variant, result["patterns"][-1], "mAP").values())
        shares = [taken[variant["name"]] / taken[dense["name"]] for taken in seconds.values()]
        lines.append(f"| {variant['name']} | {sum(values) / len(values):.1f} | {variant['gmacs'] / dense['gmacs']:.2f} | "
                     + " | ".join(f"{share:.2f}" for share in shares) + " |")
    return lines


if __name__ == "__main__":
    run(main)
