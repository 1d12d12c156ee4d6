"""A real DeMo checkout on a machine without a GPU and without CLIP's weights: what DeMo asks of CUDA is answered by the CPU.

    python demo_on_cpu.py CHECKOUT WORDS …    python -m demo_sdtps WORDS …, in that checkout
"""
import runpy
import sys
from types import SimpleNamespace

import torch
from torch import nn


def prepare(checkout):
    """Import the checkout's model with a CLIP image tower of random weights."""
    answer_by_the_cpu()
    sys.path.insert(0, str(checkout))
    from modeling.clip.model import VisionTransformer

    from modeling import meta_arch

    def random_clip(cfg, name, rows, columns, stride):
        tower = VisionTransformer(rows, columns, 16, stride, 768, 12, 12, 512, cfg)
        return SimpleNamespace(visual=tower, to=lambda device: None)

    meta_arch.load_clip_to_cpu = random_clip


def answer_by_the_cpu():
    """Moves to a GPU stay on the CPU."""
    for owner in (torch.Tensor, nn.Module):
        owner.cuda = lambda self, *args, **kwargs: self
        owner.to = moved_less(owner.to)
    torch.cuda.synchronize = lambda *args: None


def moved_less(to):
    def move(self, *args, **kwargs):
        if args and (type(args[0]) is int or str(args[0]).startswith("cuda")):
            return self
        return to(self, *args, **kwargs)

    return move


if __name__ == "__main__":
    checkout, *words = sys.argv[1:]
    prepare(checkout)
    sys.path.remove(checkout)
    sys.argv = ["demo_sdtps", *words]
    runpy.run_module("demo_sdtps", run_name="__main__", alter_sys=True)
