"""Benchmarks of SEPS: similarities of images and captions, relative to a loop over the captions (docs/seps.md)."""
from functools import partial

import torch
from torch import nn

from demo_sdtps.benchmarks.plain.seps_loop import PlainSEPS
from demo_sdtps.benchmarks.rows import Row, check_equal, in_turns, peak_memory, speed_row
from demo_sdtps.seps import CrossSparseAggrNet

CPU = torch.device("cpu")
TARGET = 5
WORDS, LONG_WORDS = (8, 24), (30, 60)  # range of the number of tokens of captions and of long captions
VERSIONS = {"open": False, "paper": True}
GIB = 2**30

Batch = tuple[torch.Tensor, ...]


def seps_rows(quick: bool = False, device: torch.device = CPU) -> list[Row]:
    """Similarities of images and captions, in evaluation and training, and memory on a CPU. Raises as `seps_speed_rows`."""
    images, *counts, patches, width = (8, 4, 8, 16, 32) if quick else (100, 50, 500, 196, 512)
    rows = seps_speed_rows(quick, device)
    for captions in counts if device.type == "cpu" else ():
        memory = peak_memory(_evaluate_drawn, images, captions, patches, width) / GIB
        rows.append(Row(f"SEPS, {images} images × {captions} captions: peak memory of the process", None, memory, "GiB", None))
    return rows


def seps_speed_rows(quick: bool, device: torch.device) -> list[Row]:
    """Similarities of equally many images and captions on `device`. Raises `RuntimeError` where they differ."""
    evaluated, trained, patches, width = (4, 3, 16, 32) if quick else (64, 32, 196, 512)
    rows = []
    for name, is_paper in VERSIONS.items():
        torch.manual_seed(0)
        plain = PlainSEPS(width, patches, use_paper_version=is_paper).to(device)
        ours = CrossSparseAggrNet(width, patches, use_paper_version=is_paper).to(device)
        ours.load_state_dict(plain.state_dict())
        for count, what, work in ((evaluated, "evaluation", evaluate), (trained, "training step", _train)):
            batch = draw(count, count, patches, width, device)
            check_equal("SEPS", evaluate(ours, batch), evaluate(plain, batch))
            title = f"SEPS, {name} version, {count} images × {count} captions: {what}"
            seconds = in_turns(title, {"reference": partial(work, plain, batch), "ours": partial(work, ours, batch)}, 1, device)
            rows.append(speed_row(title, seconds, TARGET if work is evaluate else None))
    return rows


def draw(images: int, captions: int, patches: int, width: int, device: torch.device = CPU) -> Batch:
    """Random arguments of the network: image tokens, captions and lengths, long captions and lengths; the lengths are on the
    CPU."""
    texts = []
    for shortest, longest in (WORDS, LONG_WORDS):
        texts += [torch.randn(captions, longest, width).to(device), torch.randint(shortest, longest + 1, (captions,))]
    return torch.randn(images, 1 + patches, width).to(device), *texts


def _evaluate_drawn(images: int, captions: int, patches: int, width: int) -> None:
    evaluate(CrossSparseAggrNet(width, patches, use_paper_version=True), draw(images, captions, patches, width))


@torch.no_grad()
def evaluate(network: nn.Module, batch: Batch) -> torch.Tensor:
    return network.eval()(*batch)


def _train(network: nn.Module, batch: Batch) -> None:
    network.zero_grad()
    leaves = [part.detach().requires_grad_() if part.is_floating_point() else part for part in batch]
    network.train()(*leaves)[0].sum().backward()
