"""Transforms of image-text matching, from a decoded image to the input of the image tower (docs/seps.md)."""

import random

import torch
from torchvision.transforms import v2
from yacs.config import CfgNode

from demo_sdtps.datasets import transforms
from demo_sdtps.datasets.transforms import Generator, Transform

CROP_ASPECT = (3 / 4, 4 / 3)  # range of width over height of a random crop


class CropTransform:
    """uint8 (3, h, w) → float32 (3, H, W): random resized crop (Inception), flip, normalise.

    All random numbers come from the generator `rng`, so that a sample's seed determines its crop.
    """

    def __init__(self, cfg: CfgNode):
        self.flip, self.least = cfg.INPUT.PROB, cfg.INPUT.MIN_CROP
        self.size, self.normalise = list(cfg.INPUT.SIZE), transforms.normalise(cfg)

    def __call__(self, image: torch.Tensor, rng: Generator = random) -> torch.Tensor:
        _, height, width = image.shape
        box = crop_box(height, width, self.least, rng)
        image = v2.functional.resized_crop(image, *box, self.size, v2.InterpolationMode.BICUBIC)
        return self.normalise(image.flip(2) if rng.random() < self.flip else image)


def crop_box(height: int, width: int, least: float, rng: Generator) -> tuple[int, int, int, int]:
    """Top, left, rows and columns of a random crop with at least the share `least` of the area.

    Where no attempt fits, the centre, which of an image longer than 4:3 is a part.
    """
    for columns, rows in transforms.random_sizes(height, width, (least, 1), CROP_ASPECT, rng):
        if 0 < rows <= height and 0 < columns <= width:
            return rng.randint(0, height - rows), rng.randint(0, width - columns), rows, columns
    narrowest, widest = CROP_ASPECT
    rows, columns = min(height, round(width / narrowest)), min(width, round(height * widest))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def resize_transform(cfg: CfgNode) -> Transform:
    """uint8 (3, h, w) → float32 (3, H, W) for evaluation: resize as in training, normalise."""
    return transforms.resize_and_normalise(cfg, cfg.INPUT.SIZE, v2.InterpolationMode.BICUBIC)
