"""Decoding of images, with errors that name the file; checks of all images, and those that are left out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.ranges import PERCENTILES, Range
from demo_sdtps.datasets.pixels import ADVICE, read_pixels
from demo_sdtps.runtime.progress import progress

Paths = tuple[str | None, ...]  # None: there is no such image
Images = tuple[torch.Tensor | None, ...]
Scales = Mapping[str, Range | None]  # by modality
S = TypeVar("S")
T = TypeVar("T")

OWN_SCALES: Scales = dict.fromkeys(MODALITIES, PERCENTILES)
STORED: Scales = dict.fromkeys(MODALITIES)  # of published data sets
LOOKED_AT, FEW_VALUES = 16, 12


def decode(item: Any, advice: str = ADVICE, scale: Range | None = PERCENTILES) -> torch.Tensor:
    """`read_pixels` of a path, PIL image, array or tensor, as uint8 (3, H, W) with channels last in memory."""
    return torch.from_numpy(read_pixels(item, advice, scale)).permute(2, 0, 1)


def flat_images(
    triplets: Sequence[S], decoder: Callable[[S], Images], modalities: Sequence[str]
) -> list[str]:
    """A warning for each modality of which the median image, of up to `LOOKED_AT`, has few values; images that cannot be read
    are left to the error that names them."""
    images: dict[str, list[int]] = {name: [] for name in modalities}
    for triplet in triplets[:: -(-len(triplets) // LOOKED_AT)]:
        with suppress(UserError):
            for name, image in zip(modalities, decoder(triplet), strict=True):
                if image is not None:
                    values = image[0].flatten().bincount().count_nonzero()
                    images[name].append(int(values))
    return [
        f"WARNING: half of the {name} images have {middle} of 256 grey values or fewer, so they tell little; check the files, "
        "and INPUT.RANGES where they have more than 8 bits."
        for name, counts in images.items()
        if counts and (middle := sorted(counts)[len(counts) // 2]) < FEW_VALUES
    ]


def decode_triplet(
    paths: Paths, modalities: Sequence[str] = MODALITIES, scales: Scales = OWN_SCALES
) -> Images:
    """Images of `modalities`, each uint8 (3, H, W), None for one that is absent, from three files or one with RGB, NI and
    TI side by side; `scales` are those of `decode`."""
    places = [MODALITIES.index(modality) for modality in modalities]
    if len(paths) == len(MODALITIES):
        pairs = [(name, paths[place]) for name, place in zip(modalities, places, strict=True)]
        return tuple(None if p is None else decode(p, scale=scales[name]) for name, p in pairs)
    assert paths[0]
    image = decode(paths[0], scale=scales[MODALITIES[0]])
    if image.shape[2] % len(MODALITIES):
        raise UserError(
            f"The image {paths[0]} is {image.shape[2]} pixels wide, but it must hold {', '.join(MODALITIES)} "
            f"side by side, equally wide{ADVICE}"
        )
    planes = image.chunk(len(MODALITIES), dim=2)
    return tuple(planes[place] for place in places)


def verify(paths: Iterable[str]) -> None:
    """Decode every image once. Raises a `UserError` that lists all files that cannot be read."""
    checked = set(paths)
    if damaged := unreadable(checked):
        head = f"{len(damaged)} of {len(checked)} images cannot be read; replace them or remove their triplets:"
        raise UserError("\n  ".join([head, *damaged.values()]))


def unreadable(paths: Iterable[str]) -> dict[str, str]:
    """The images that cannot be read, sorted by path, and what is wrong: "PATH cannot be read (reason)"."""

    def problem(path: str) -> str:
        try:
            decode(path, advice="")
        except UserError as error:
            return str(error).removeprefix("The image ")
        return ""

    checked = sorted(set(paths))
    problems = zip(checked, parallel(problem, checked, "verifying images"), strict=True)
    return {path: problem for path, problem in problems if problem}


def parallel(
    function: Callable[[S], T], items: Sequence[S], title: str, unit: str = "image"
) -> Iterator[T]:
    """Results of `function` in the order of the items, by threads and with a progress bar."""
    with ThreadPoolExecutor() as pool:
        yield from progress(pool.map(function, items), title, len(items), unit=unit)
