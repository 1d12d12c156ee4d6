"""Training steps of several processes beside one's: torchrun --standalone --nproc_per_node=K tools/gpu_processes.py X.json"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
import copy
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from yacs.config import CfgNode

from demo_sdtps.benchmarks.model import random_batch
from demo_sdtps.config import load_cfg
from demo_sdtps.config.cli import run
from demo_sdtps.config.files import write_json
from demo_sdtps.engine.distributed import all_gather, init_distributed, local_rank, rank, shard_for_rank, world_size
from demo_sdtps.modeling import DeMo, make_model
from demo_sdtps.modeling.collectives import synchronise
from demo_sdtps.modeling.losses import total_loss

EACH, STEPS, CLASSES, CAMERAS = 4, 3, 5, 4
STILL = ("INPUT.SIZE_TRAIN", "[64,32]", "INPUT.SIZE_TEST", "[64,32]", "MODEL.DROP_PATH", "0")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The step of tools/gpu_check.py that torchrun starts. Unlike training, which leaves out the "
                                "exchange between processes where there is one, a single process too goes through NCCL.")
    parser.add_argument("json", type=Path, metavar="X.json", help="where rank 0 writes the largest differences")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # while NCCL waits for others, no handler of Python's runs
    with connected():
        result = differences()
        if rank() == 0:
            write_json(arguments.json, result)


@contextmanager
def connected() -> Iterator[None]:
    """As `processes`, which connects nothing where there is one: that one is connected with itself."""
    with init_distributed():
        if is_alone := not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        yield
        if is_alone:
            dist.destroy_process_group()


def differences() -> dict[str, float]:
    """The largest differences of losses and weights from those of one process, by what they are called in the report."""
    torch.backends.cudnn.allow_tf32 = False  # the weights below differ by less than its rounding
    device = torch.device("cuda", local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    cfg = load_cfg("Synthetic/DeMo_SDTPS.yml", list(STILL))
    torch.manual_seed(0)
    alone = make_model(cfg, CLASSES, CAMERAS).to(device).train()
    shared = copy.deepcopy(alone)
    synchronise(shared)
    network = DistributedDataParallel(shared, static_graph=True)  # as engine.distributed.wrap_ddp
    images, cameras, labels = random_batch(cfg, EACH * world_size(), device)
    own = torch.tensor(shard_for_rank(range(len(labels))), device=device)
    expected = steps(cfg, alone, alone, images, cameras, labels)
    found = steps(cfg, shared, network, {name: image[own] for name, image in images.items()}, cameras[own], labels)
    backend = "nccl" if device.type == "cuda" else "gloo"
    what = f"DistributedDataParallel of {world_size()} processes with {backend} beside one"
    weights = zip(shared.state_dict().values(), alone.state_dict().values(), strict=True)
    return {f"{what}: largest difference of the losses": (found - expected).abs().max().item(),
            f"{what}: largest difference of the weights": max((one - other).abs().max().item() for one, other in weights)}


def steps(cfg: CfgNode, model: DeMo, network: nn.Module, images: Mapping[str, torch.Tensor], cameras: torch.Tensor,
          labels: torch.Tensor) -> torch.Tensor:
    """Losses (STEPS,) of the whole batch, of which `network`, `model` or `model` wrapped, has the images of this process."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(STEPS):
        outputs = network(images, cameras)
        outputs = outputs if network is model else [all_gather(part) for part in outputs]
        loss, _ = total_loss(cfg, outputs, labels, model.pair_weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


if __name__ == "__main__":
    run(main)
