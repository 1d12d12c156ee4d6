"""Transforms from a decoded image to the input of the network (docs/method.md); each modality is augmented independently."""
import math
import random
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torchvision.transforms import v2
from yacs.config import CfgNode

Transform = Callable[..., torch.Tensor]
Generator = random.Random | ModuleType  # Python's random generator; the module `random` is the global one

ERASED_AREA, ERASED_ASPECT, ATTEMPTS = (0.02, 1 / 3), (0.3, 1 / 0.3), 10
"""Range of the area (share of the image) and of height over width, and the number of attempts (Zhong et al., Random Erasing,
2020)."""


class TrainTransform:
    """uint8 (3, h, w) → float32 (3, H, W): resize, flip, pad and crop, normalise, erase (docs/method.md).

    Flip, pad and crop are one copy into a black canvas: as separate transforms they dominate the time after decoding.
    """

    def __init__(self, cfg: CfgNode):
        self.flip, self.padding = cfg.INPUT.PROB, cfg.INPUT.PADDING
        self.size = torch.Size(cfg.INPUT.SIZE_TRAIN)
        self.resize = v2.Resize(self.size, interpolation=v2.InterpolationMode.BICUBIC)
        # For pixel values in [0, 255].
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in (
            cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD))
        self.erasing = cfg.INPUT.RE_PROB

    def __call__(self, image: torch.Tensor, draw: Generator = random) -> torch.Tensor:
        if image.shape[1:] != self.size:
            image = self.resize(image)
        if draw.random() < self.flip:
            image = image.flip(2)
        down, right = (draw.randint(-self.padding, self.padding) for _ in range(2))
        # Padding is black and precedes normalisation, as in DeMo.
        image = pad_and_crop(image, down, right).sub_(self.mean).div_(self.std)
        return erase(image, draw) if draw.random() < self.erasing else image


def pad_and_crop(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """uint8 (3, H, W) → float32: shift, filled with black, as padding by p and cropping at (p - down, p - right) do."""
    _, height, width = image.shape
    seen = image[:, max(-down, 0):max(height - down, 0), max(-right, 0):max(width - right, 0)]
    canvas = torch.zeros(image.shape)
    top, left = max(down, 0), max(right, 0)
    canvas[:, top:top + seen.shape[1], left:left + seen.shape[2]] = seen
    return canvas


def erase(image: torch.Tensor, draw: Generator) -> torch.Tensor:
    """Fill a random rectangle of (3, H, W) with normal noise, in place, as timm's erasing does with the global generator."""
    _, height, width = image.shape
    for _ in range(ATTEMPTS):
        area = draw.uniform(*ERASED_AREA) * height * width
        aspect = math.exp(draw.uniform(*map(math.log, ERASED_ASPECT)))
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = draw.randint(0, height - rows), draw.randint(0, width - columns)
            generator = torch.Generator().manual_seed(draw.getrandbits(63))
            image[:, top:top + rows, left:left + columns] = torch.randn(3, rows, columns, generator=generator)
            break
    return image


def test_transform(cfg: CfgNode) -> Transform:
    """uint8 (3, h, w) → float32 (3, H, W): resize and normalise."""
    return resize_and_normalise(cfg, cfg.INPUT.SIZE_TEST, v2.InterpolationMode.BILINEAR)


def resize_and_normalise(cfg: CfgNode, size: Sequence[int], interpolation: v2.InterpolationMode) -> Transform:
    """uint8 (3, h, w) → float32 (3, *size)."""
    return v2.Compose([v2.Resize(list(size), interpolation=interpolation), v2.ToDtype(torch.float32, scale=True),
                       v2.Normalize(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD)])
