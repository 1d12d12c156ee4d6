"""train_net.py for processes that share a GPU, where NCCL before 2.30 refuses: gloo exchanges the gradients."""

import os
from unittest import mock

import torch.distributed as dist

from demo_sdtps.commands import train
from demo_sdtps.config.cli import run


def with_gloo(backend, start=dist.init_process_group, **named):
    start("cpu:gloo,cuda:gloo", **named)


if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = "0"
    with mock.patch.object(dist, "init_process_group", with_gloo):
        run(train.main)
