"""Decoding of images, with errors that name the file, and checks of all images."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets.pixels import ADVICE, as_rgb, decode_pixels
from demo_sdtps.runtime.progress import progress

Paths = tuple[str | None, ...]  # None: there is no such image
Images = tuple[torch.Tensor | None, ...]
S = TypeVar("S")
T = TypeVar("T")


def decode(path: str, advice: str = ADVICE) -> torch.Tensor:
    """Image as uint8 (3, H, W) with channels last in memory."""
    return torch.from_numpy(decode_pixels(path, advice)).permute(2, 0, 1)


def as_image(item: object, advice: str = ADVICE) -> torch.Tensor:
    """A path, a PIL image, an array (H, W, 3), (H, W, 1) or (H, W), or a tensor (3, H, W), (1, H, W) or (H, W), as uint8
    (3, H, W). Arrays and tensors are uint8, or floats in [0, 1]."""
    if isinstance(item, (str, os.PathLike)):
        return decode(os.fspath(item), advice)
    if isinstance(item, Image.Image):
        try:
            return torch.from_numpy(as_rgb(item)).permute(2, 0, 1)
        except Exception as error:
            # Pillow reads the file of a PIL image late, and raises many types of errors
            raise UserError(f"A PIL image cannot be read ({error}){advice}") from None
    if not isinstance(item, (np.ndarray, torch.Tensor)):
        raise UserError(
            f"An image is {type(item).__name__}, but it must be a path, a PIL image, an array or a tensor{advice}"
        )
    image = torch.as_tensor(item.copy()) if isinstance(item, np.ndarray) else item
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
        raise UserError(
            f"An image has values of {image.dtype} from {image.min()} to {image.max()}, but they must be uint8, or "
            f"floats from 0 to 1{advice}"
        )
    return image.cpu().expand(3, -1, -1)


def decode_triplet(paths: Paths, modalities: Sequence[str] = MODALITIES) -> Images:
    """Images of `modalities`, each uint8 (3, H, W), None for one that is absent, from three files or one with RGB, NI and
    TI side by side."""
    places = [MODALITIES.index(modality) for modality in modalities]
    if len(paths) == len(MODALITIES):
        files = [paths[place] for place in places]
        return tuple(None if path is None else decode(path) for path in files)
    assert paths[0]
    image = decode(paths[0])
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
