"""Time HDM and ATMoE against their plain formulation (seven attentions, a loop over the experts), in one run.

    python tools/benchmark_fusion.py --config_file configs/RGBNT201/DeMo.yml
"""
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from config import MODALITIES, UserError
from config.cli import config_parser, parse, positive_int, run
from config.progress import progress
from engine.runtime import choose_device
from modeling.fusion import HDM, ATMoE
from modeling.trunk import Trunk
from modeling.weights import from_demo

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from reference.fusion import Fusion  # the plain formulation that the tests compare with


class Fast(nn.Module):
    """HDM and ATMoE as the model has them."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.hdm, self.atmoe = HDM(width), ATMoE(width, heads)

    def forward(self, patches: dict[str, torch.Tensor], globals_: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.atmoe(self.hdm(patches, globals_))


def main() -> None:
    parser = config_parser("Milliseconds of HDM and ATMoE for a batch, beside those of their plain formulation; the largest "
                           "difference of their outputs in evaluation.")
    parser.add_argument("--batch", type=positive_int, default=64, metavar="N", help="triplets (default: 64)")
    parser.add_argument("--repeats", type=positive_int, default=10, metavar="N", help="rounds; the median counts (default: 10)")
    arguments, cfg = parse(parser)
    if not cfg.MODEL.ATM:
        raise UserError("MODEL.ATM is False, so there is nothing to time; use a configuration such as "
                        "configs/RGBNT201/DeMo.yml.")
    device = choose_device(cfg)
    torch.manual_seed(cfg.SOLVER.SEED)
    trunk = Trunk(cfg, camera_num=1)  # for its shapes alone
    plain = Fusion(trunk.width, cfg.MODEL.HEAD).to(device)
    fast = Fast(trunk.width, cfg.MODEL.HEAD).to(device)
    fast.load_state_dict(from_demo({f"generalFusion.{name}": weight for name, weight in plain.state_dict().items()}))
    patches = {modality: torch.randn(arguments.batch, trunk.num_patches, trunk.width, device=device) for modality in MODALITIES}
    globals_ = {modality: torch.randn(arguments.batch, trunk.width, device=device) for modality in MODALITIES}

    def milliseconds(work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return 1000 * (time.perf_counter() - started)

    def evaluate(module: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return module.eval()(patches, globals_)

    def train(module: nn.Module) -> None:
        inputs = [{name: tensor.detach().requires_grad_() for name, tensor in part.items()} for part in (patches, globals_)]
        module.train()(*inputs).sum().backward()

    modules, steps = {"plain": plain, "fast": fast}, {"evaluation": evaluate, "training step": train}
    difference = (evaluate(plain) - evaluate(fast)).abs().max().item()
    times = {(step, name): [] for step in steps for name in modules}
    # Taken in turns, so that a busy moment of the machine falls on both.
    for _ in progress(range(arguments.repeats + 1), "measuring", unit="round"):
        for step, name in times:
            times[step, name].append(milliseconds(lambda step=step, name=name: steps[step](modules[name])))
    print(f"{arguments.batch} triplets, {trunk.num_patches} patches, width {trunk.width}, {cfg.MODEL.HEAD} heads, {device}; "
          f"largest difference {difference:.1e}")
    print(f"{'':16}{'plain ms':>10}{'fast ms':>10}{'plain / fast':>14}")
    for step in steps:
        # The first round warms up.
        before, after = (statistics.median(times[step, name][1:]) for name in modules)
        print(f"{step:16}{before:10.1f}{after:10.1f}{before / after:14.1f}")


if __name__ == "__main__":
    run(main)
