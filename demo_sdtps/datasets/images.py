"""Decoding of images, with errors that name the file; checks of all images, and those that are left out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.cli import count_text, print_lines
from demo_sdtps.config.ranges import PERCENTILES, Range
from demo_sdtps.datasets.base import Sample
from demo_sdtps.datasets.pixels import ADVICE, read_pixels
from demo_sdtps.runtime.distributed import all_gather_object, is_main, shard_for_rank
from demo_sdtps.runtime.progress import progress

Paths = tuple[str | None, ...]  # None: there is no such image
Images = tuple[torch.Tensor | None, ...]
Scales = Mapping[str, Range | None]  # by modality
S = TypeVar("S", bound=Sample)
A = TypeVar("A")
B = TypeVar("B")

OWN_SCALES: Scales = dict.fromkeys(MODALITIES, PERCENTILES)
STORED: Scales = dict.fromkeys(MODALITIES)  # of published data sets

left_out: dict[str, str] = {}
"""What is wrong with the images of data sets that this process has left out, by path (DATASETS.SKIP_UNREADABLE)."""


def decode(item: Any, advice: str = ADVICE, scale: Range | None = PERCENTILES) -> torch.Tensor:
    """`read_pixels` of a path, PIL image, array or tensor, as uint8 (3, H, W) with channels last in memory."""
    return torch.from_numpy(read_pixels(item, advice, scale)).permute(2, 0, 1)


def decode_triplet(
    paths: Paths, modalities: Sequence[str] = MODALITIES, scales: Scales = OWN_SCALES
) -> Images:
    """Images of `modalities`, each uint8 (3, H, W), None for one that is absent, from three files or one with RGB, NI and
    TI side by side; `scales` are those of `decode`."""
    if len(paths) == len(MODALITIES):
        pairs = [(name, paths[MODALITIES.index(name)]) for name in modalities]
        return tuple(None if p is None else decode(p, scale=scales[name]) for name, p in pairs)
    image = decode(paths[0], scale=scales[MODALITIES[0]])
    planes = image.chunk(len(MODALITIES), dim=2)
    return tuple(planes[MODALITIES.index(name)] for name in modalities)


def verify(paths: Iterable[str]) -> None:
    """Decode every image once. Raises a `UserError` that lists all files that cannot be read."""
    checked = sorted(set(paths))
    if damaged := unreadable(checked):
        head = f"{len(damaged)} of {len(checked)} images cannot be read; replace them or remove their triplets:"
        raise UserError("\n  ".join([head, *damaged.values()]))


def unreadable(paths: Sequence[str]) -> dict[str, str]:
    """What is wrong with those of the images that cannot be read, by path: "PATH cannot be read (reason)"."""

    def problem(path: str) -> str:
        try:
            decode(path, advice="")
        except UserError as error:
            return str(error).removeprefix("The image ")
        return ""

    problems = zip(paths, parallel(problem, paths, "verifying images"), strict=True)
    return {path: problem for path, problem in problems if problem}


def drop_unreadable(samples: Sequence[S], broken: dict[str, str]) -> list[S]:
    """The samples without images that cannot be read, and without those that have no other. What is wrong is added to
    `broken` by path. Each of several processes reads a part of them."""
    paths = {path for sample in shard_for_rank(samples) for path in sample.files}
    for damaged in all_gather_object(unreadable(sorted(paths))):
        broken.update(damaged)
    remaining = [sample.without(broken) for sample in samples]
    return [sample for sample in remaining if sample.files]


def omissions(broken: Mapping[str, str]) -> list[str]:
    """Lines on the images that cannot be read; none where all can."""
    return [f"Left out, {count_text(len(broken), 'image')}:", *broken.values()] if broken else []


def print_left_out() -> None:
    """List at the end of a command what was left out, if anything was."""
    if left_out and is_main():
        print_lines(*omissions(left_out))
    left_out.clear()


def parallel(
    function: Callable[[A], B], items: Sequence[A], title: str, unit: str = "image"
) -> Iterator[B]:
    """Results of `function` in the order of the items, by threads and with a progress bar."""
    with ThreadPoolExecutor() as pool:
        yield from progress(pool.map(function, items), title, len(items), unit=unit)
