"""train_net.py for processes that share a GPU: torchrun --nproc_per_node=2 tests/helpers/train_on_one_gpu.py …

NCCL allows that from 2.30 on; before, gloo exchanges the gradients.
"""

import os
from unittest import mock

import torch
import torch.distributed as dist

from demo_sdtps.commands import train
from demo_sdtps.config.cli import run


def with_gloo(backend, start=dist.init_process_group, **named):
    start("cpu:gloo,cuda:gloo", **named)


if __name__ == "__main__":
    os.environ |= {"LOCAL_RANK": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    if torch.cuda.nccl.version() >= (2, 30):
        run(train.main)
    else:
        with mock.patch.object(dist, "init_process_group", with_gloo):
            run(train.main)
