"""The images that `features` is given, as triplets."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demo_sdtps.config import UserError

ImageLike = Any  # as `datasets.pixels.read_pixels` takes it, None for a missing one
Items = Any  # an image, a sequence of images, or an array or tensor with a further first axis


def zip_triplets(items: dict[str, Items]) -> list[tuple[ImageLike, ...]]:
    """Items by triplet, from those by modality."""
    lists = {name: list_images(each) for name, each in items.items() if each is not None}
    counts = {name: len(each) for name, each in lists.items()}
    names, count = ", ".join(items), max(counts.values(), default=0)
    if not count:
        raise UserError(
            f"There is no image of {names}, which the model reads; give at least one of them."
        )
    if min(counts.values()) < count:
        listed = ", ".join(f"{number} of {name}" for name, number in counts.items())
        raise UserError(
            f"The numbers of images differ: {listed}; give as many of each modality, None for a missing image."
        )
    triplets = list(zip(*(lists.get(name, [None] * count) for name in items), strict=True))
    for number, triplet in enumerate(triplets):
        if all(item is None for item in triplet):
            raise UserError(
                f"Triplet {number} (from 0) has no image of {names}; give one or leave it out."
            )
    return triplets


def list_images(items: Items) -> list[ImageLike]:
    """One item or many as a list."""
    if isinstance(items, (str, Path, Image.Image)):
        return [items]
    if isinstance(items, np.ndarray) and items.dtype.kind in "USO":  # of paths or images
        return list(items.flat)
    if getattr(items, "ndim", 4) < 4:  # an array or a tensor
        return [items]
    if not isinstance(items, Iterable):
        raise UserError(
            f"{items!r} is no image; give a path, a PIL image, an array, a tensor, or a sequence of them."
        )
    return list(items)
