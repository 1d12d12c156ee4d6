"""Decoding of images, with errors that name the file, and checks of all images."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.ranges import EXAMPLE, PERCENTILES, Range
from demo_sdtps.datasets.pixels import ADVICE, decode_pixels, pil_pixels, to_8_bits
from demo_sdtps.runtime.progress import progress

Paths = tuple[str | None, ...]  # None: there is no such image
Images = tuple[torch.Tensor | None, ...]
Scales = Mapping[str, Range | None]  # by modality
S = TypeVar("S")
T = TypeVar("T")

OWN_SCALES: Scales = dict.fromkeys(MODALITIES, PERCENTILES)
STORED: Scales = dict.fromkeys(MODALITIES)  # of published data sets
LOOKED_AT, FEW_VALUES = 16, 12


def decode(path: str, advice: str = ADVICE, scale: Range | None = PERCENTILES) -> torch.Tensor:
    """Own image as uint8 (3, H, W) with channels last in memory: turned as its header says, more than 8 bits by `scale`.

    Where that is None, as for published data sets and masks: as it is stored, of 16 bits the upper 8.
    """
    return torch.from_numpy(decode_pixels(path, advice, scale)).permute(2, 0, 1)


def as_image(item: Any, advice: str = ADVICE, scale: Range = PERCENTILES) -> torch.Tensor:
    """A path, a PIL image, an array (H, W, 3), (H, W, 1) or (H, W), or a tensor (3, H, W), (1, H, W) or (H, W), as uint8
    (3, H, W). Arrays and tensors are uint8, floats in [0, 1], of 16 bits, or any values where `scale` states their range."""
    if isinstance(item, (str, os.PathLike)):
        return decode(os.fspath(item), advice, scale)
    if isinstance(item, Image.Image):
        return torch.from_numpy(pil_pixels(item, advice, scale)).permute(2, 0, 1)
    if not isinstance(item, (np.ndarray, torch.Tensor)):
        raise UserError(
            f"An image is {type(item).__name__}, but it must be a path, a PIL image, an array or a tensor{advice}"
        )
    if isinstance(item, np.ndarray):  # a copy in the order of bytes that torch takes
        item = item.astype(item.dtype.newbyteorder("="))
    image = torch.as_tensor(item)
    if image.ndim == 2:
        image = image[None]
    elif image.ndim == 3 and isinstance(item, np.ndarray):
        image = image.permute(2, 0, 1)
    if image.ndim != 3 or image.shape[0] not in (1, 3) or 0 in image.shape:
        raise UserError(
            f"An image has the shape {tuple(item.shape)}, but an array must be (height, width, 3), by "
            "image.transpose(1, 2, 0), a tensor (3, height, width), by image.permute(2, 0, 1), or either (height, width)"
            f"{advice}"
        )
    if image.is_floating_point() and image.min() >= 0 and image.max() <= 1:
        image = v2.functional.to_dtype(image.float(), torch.uint8, scale=True)
    if image.dtype != torch.uint8:
        values = image.detach().double().cpu().numpy()
        if scale.of_image and image.dtype not in (torch.uint16, torch.int16):
            raise UserError(
                f"An image has values of {image.dtype} from {values.min()} to {values.max()}, but they must be uint8, of 16 "
                f"bits, floats from 0 to 1, or in a range that INPUT.RANGES states, such as {EXAMPLE}{advice}"
            )
        image = torch.from_numpy(to_8_bits(values, scale))
    return image.cpu().expand(3, -1, -1)


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
        files = [paths[place] for place in places]
        return tuple(
            None if path is None else decode(path, scale=scales[name])
            for name, path in zip(modalities, files, strict=True)
        )
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
