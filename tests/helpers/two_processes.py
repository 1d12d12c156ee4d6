"""What tests/training/test_distributed.py runs under torchrun: the whole model's step in shares, one file for each process.

torchrun --nproc_per_node=2 tests/helpers/two_processes.py OUTPUT CONFIG_FILE,CONFIG_FILE KEY VALUE …
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from numeric import shift_seed
from torch import nn
from torch.utils._pytree import tree_map_only

from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.losses import total_loss
from demo_sdtps.runtime import distributed

BATCH, IDENTITIES, CAMERAS, STEPS = 8, 4, 2, 3


def main() -> None:
    output, config_files, *opts = sys.argv[1:]
    with distributed.init_distributed():
        for config_file in map(Path, config_files.split(",")):
            torch.save(
                steps(load_cfg(config_file, opts)),
                Path(output) / f"{config_file.stem}_{distributed.rank()}.pth",
            )


def groups() -> list:
    """The groups of training and of the exchange of objects."""
    return [dist.group.WORLD, *distributed._objects] if dist.is_initialized() else []


def own(rows: torch.Tensor) -> torch.Tensor:
    """This process's part of the rows."""
    return torch.stack(distributed.shard_for_rank(rows))


def steps(cfg) -> dict:
    """Losses of some steps, and what the model has become."""
    torch.manual_seed(shift_seed())
    model = make_model(cfg, IDENTITIES, CAMERAS)
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.0  # processes draw for themselves
    network = distributed.wrap_ddp(model.train())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    images = {modality: torch.randn(BATCH, 3, *cfg.INPUT.SIZE_TRAIN) for modality in MODALITIES}
    labels, cameras = torch.arange(BATCH) % IDENTITIES, torch.arange(BATCH) // IDENTITIES
    losses = []
    for _ in range(STEPS):
        local = {modality: own(image) for modality, image in images.items()}
        output = network(local, own(cameras))
        loss, _ = total_loss(
            cfg,
            tree_map_only(torch.Tensor, distributed.all_gather, output),
            distributed.all_gather(own(labels)),
            model.head_weights,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows = torch.arange(5.0).unsqueeze(1)
    norm, features = nn.Sequential(nn.BatchNorm1d(5)), 3 + torch.randn(BATCH, 5)
    normed = distributed.wrap_ddp(norm)(own(features))
    return {
        "normed": distributed.all_gather(normed).detach(),
        "norm": norm.state_dict(),
        "timeouts": [
            group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
            for group in groups()
        ],
        "losses": losses,
        "state": model.state_dict(),
        "shared": distributed.shard_for_rank(range(5)),
        "of batch": distributed.shard_for_rank(range(8)),
        "rows": distributed.all_gather_rows(own(rows), len(rows)),
        "from main": distributed.broadcast_from_main(lambda: f"of {distributed.rank()}"),
        "of all": distributed.all_gather_object(distributed.rank()),
        "is equal": [is_equal("the same"), is_equal(distributed.rank())],
    }


def is_equal(thing) -> bool:
    """Whether the processes agree."""
    try:
        distributed.check_equal(thing, "things")
    except UserError:
        return False
    return True


if __name__ == "__main__":
    main()
