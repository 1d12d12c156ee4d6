"""Time one training step of the trunk with torch's fused attention and with plain matrix products, in one run.

    python tools/benchmark_attention.py --config_file configs/Synthetic/DeMo_SDTPS.yml
"""
import statistics
import time

import torch

from config.cli import config_parser, parse, positive_int, run
from config.progress import progress
from engine.runtime import autocast, choose_device
from modeling.trunk import Trunk

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


def main() -> None:
    parser = config_parser("Seconds of a forward and backward of the trunk, fused and plain attention side by side.")
    parser.add_argument("--batch", type=positive_int, default=96, metavar="N", help="images (default: 96)")
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="steps; the median counts (default: 5)")
    arguments, cfg = parse(parser)
    device = choose_device(cfg)
    torch.manual_seed(cfg.SOLVER.SEED)
    trunk = Trunk(cfg, camera_num=4).to(device)
    images = torch.randn(arguments.batch, 3, *cfg.INPUT.SIZE_TRAIN, device=device)
    cameras = torch.zeros(arguments.batch, dtype=torch.long, device=device)

    def step(precision: torch.dtype | None) -> float:
        started = time.perf_counter()
        with autocast(device, precision):
            tokens, _ = trunk(images, cameras)
        tokens.float().sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    cases = [(name, plain_on) for name in PRECISIONS for plain_on in ((), (device.type,))]
    seconds = {case: [] for case in cases}
    # Taken in turns, so that a busy moment of the machine falls on all of them.
    for _ in progress(range(arguments.repeats + 1), "measuring", unit="round"):
        for name, plain_on in cases:
            trunk.plain_attention_on = plain_on
            seconds[name, plain_on].append(step(PRECISIONS[name]))
    print(f"{'precision':12}{'fused s':>10}{'plain s':>10}{'fused / plain':>16}")
    for name in PRECISIONS:
        # The first round warms up.
        fused, plain = (statistics.median(seconds[name, plain_on][1:]) for plain_on in ((), (device.type,)))
        print(f"{name:12}{fused:10.3f}{plain:10.3f}{fused / plain:16.2f}")


if __name__ == "__main__":
    run(main)
