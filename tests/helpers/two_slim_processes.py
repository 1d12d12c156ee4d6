"""What tests/vit_slim/test_slim_training.py runs under torchrun: steps of a slimmed model, one file of weights each.

torchrun --nproc_per_node=2 tests/helpers/two_slim_processes.py OUTPUT
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from slim_models import CASES
from torch.nn.parallel import DistributedDataParallel

import demo_sdtps

BATCH, STEPS = 4, 3


def main() -> None:
    dist.init_process_group("gloo")
    try:
        weights = train(dist.get_rank(), dist.get_world_size())
        torch.save(weights, Path(sys.argv[1]) / f"{dist.get_rank()}.pth")
    finally:
        dist.destroy_process_group()


def train(rank: int, world: int) -> dict:
    """The weights after some steps, each process with its part of the images."""
    case = CASES["timm"]
    model = demo_sdtps.slim(case.model(), (1, 2), (0.6, 0.5), "self_supervised").train()
    network = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(STEPS):
        images = case.draw(BATCH, number)
        output = network(images.chunk(world)[rank])
        optimizer.zero_grad()
        (output.square().mean() + demo_sdtps.slim_loss(model)).backward()
        optimizer.step()
    return model.state_dict()


if __name__ == "__main__":
    main()
