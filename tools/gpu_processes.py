"""Some training steps by the processes that torchrun starts beside the same by one: for tools/gpu_check.py.

    torchrun --standalone --nproc_per_node=K tools/gpu_processes.py X.json

Unlike training, which leaves out the exchange where it is alone, a single process too goes through NCCL.
"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import copy
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from demo_sdtps.benchmarks.model import random_batch
from demo_sdtps.config import load_cfg
from demo_sdtps.config.files import write_json
from demo_sdtps.engine.distributed import gathered, local_rank, rank, share, world_size
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.collectives import synchronise
from demo_sdtps.modeling.losses import total_loss

EACH, STEPS, CLASSES, CAMERAS = 4, 3, 5, 4
STILL = ("INPUT.SIZE_TRAIN", "[64,32]", "MODEL.DROP_PATH", "0", "MODEL.DEVICE", "cpu")


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else backend)
    cfg = load_cfg("Synthetic/DeMo_SDTPS.yml", list(STILL))
    torch.manual_seed(0)
    alone = make_model(cfg, CLASSES, CAMERAS).to(device).train()
    shared = copy.deepcopy(alone)
    synchronise(shared)
    network = DistributedDataParallel(shared, device_ids=[device.index] if on_gpu else None, static_graph=True)
    images, cameras, labels = random_batch(cfg, EACH * world_size(), device)
    own = torch.tensor(share(range(len(labels))), device=device)
    expected = steps(alone, images, cameras, labels)
    found = steps(network, {name: image[own] for name, image in images.items()}, cameras[own], labels)
    what = f"DistributedDataParallel of {world_size()} processes with {backend} beside one"
    weights = zip(shared.state_dict().values(), alone.state_dict().values(), strict=True)
    result = {f"{what}: largest difference of the losses": (found - expected).abs().max().item(),
              f"{what}: largest difference of the weights": max((one - other).abs().max().item() for one, other in weights)}
    if rank() == 0:
        write_json(Path(sys.argv[1]), result)
    dist.destroy_process_group()


def steps(network: nn.Module, images: Mapping[str, torch.Tensor], cameras: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Losses (STEPS,) of the whole batch, of which this process has some images or all."""
    cfg = load_cfg("Synthetic/DeMo_SDTPS.yml", list(STILL))
    model = network.module if isinstance(network, DistributedDataParallel) else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    losses = []
    for _ in range(STEPS):
        outputs = network(images, cameras)
        if network is not model:
            outputs = [gathered(part) for part in outputs]
        loss, _ = total_loss(cfg, outputs, labels, model.pair_weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


if __name__ == "__main__":
    main()
