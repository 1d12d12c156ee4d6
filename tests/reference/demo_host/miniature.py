"""What train_net.py and test_net.py of the miniature share: its command line and images."""

import argparse
import logging
import sys

import torch

from config import cfg


def parse(local_rank):
    """The configuration of the command line, and its --local_rank where there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config_file", default="")
    parser.add_argument("opts", nargs=argparse.REMAINDER)
    if local_rank:
        parser.add_argument("--local_rank", default=0, type=int)
    words = parser.parse_args()
    if words.config_file:
        cfg.merge_from_file(words.config_file)
    cfg.merge_from_list(words.opts)
    cfg.freeze()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    return words


def batches(count, seed, scenes):
    """Noise with labels: 4 identities, 3 cameras."""
    torch.manual_seed(seed)
    for _ in range(count):
        labels, cameras = torch.arange(8) % 4, torch.arange(8) % 3
        images = {
            name: torch.randn(8, 3, *cfg.INPUT.SIZE_TRAIN) + labels.view(-1, 1, 1, 1)
            for name in ("RGB", "NI", "TI")
        }
        yield images, labels, cameras, *([torch.arange(8) // 4] if scenes else [])
