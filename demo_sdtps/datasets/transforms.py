"""Transforms from a decoded image to the input of the network (docs/method.md).

Each modality is augmented independently, or with one flip and crop per triplet (INPUT.JOINT_AUGMENTATION).
"""

import math
import random
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torchvision.transforms import v2
from yacs.config import CfgNode

Transform = Callable[..., torch.Tensor]
# the images of a sample (3, h, w), None for an absent one
Decoded = Sequence[torch.Tensor | None]
SampleTransform = Callable[..., list[torch.Tensor]]
"""All images of a sample, and optionally a random generator → their inputs of the network."""
# what is drawn for flip and crop: whether to flip, shift down and right in pixels
Geometry = tuple[bool, int, int]

ERASED_AREA, ERASED_ASPECT, ATTEMPTS = (0.02, 1 / 3), (0.3, 1 / 0.3), 10
"""Range of the area (share of the image), of height over width, and attempts (Zhong et al., Random Erasing, 2020)."""


class TrainTransform:
    """The images of a sample, uint8 (3, h, w) → float32 (3, H, W). Resize, flip, pad and crop (one shift, for speed),
    normalise, erase (docs/method.md), which each image draws for itself, but with INPUT.JOINT_AUGMENTATION flip and crop. Then
    modalities are dropped, each with the probability INPUT.MODALITY_DROPOUT but never all: their images become zeros."""

    def __init__(self, cfg: CfgNode):
        self.settings = cfg.INPUT
        self.size = torch.Size(cfg.INPUT.SIZE_TRAIN)
        self.resize = v2.Resize(self.size, interpolation=v2.InterpolationMode.BICUBIC)
        # For pixel values in [0, 255].
        statistics = (cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD)
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in statistics)

    def __call__(self, images: Decoded, rng: random.Random) -> list[torch.Tensor]:
        joint = self.geometry(rng) if self.settings.JOINT_AUGMENTATION else None
        inputs = [
            None if image is None else self.augment(image, joint or self.geometry(rng), rng)
            for image in images
        ]
        if dropout := self.settings.MODALITY_DROPOUT:
            present = [place for place, image in enumerate(inputs) if image is not None]
            dropped = [place for place in present if rng.random() < dropout]
            if len(dropped) == len(present):
                dropped.pop(rng.randrange(len(dropped)))
            inputs = [None if place in dropped else image for place, image in enumerate(inputs)]
        return fill_absent(inputs)

    def geometry(self, rng: random.Random) -> Geometry:
        flip, padding = rng.random() < self.settings.PROB, self.settings.PADDING
        return flip, rng.randint(-padding, padding), rng.randint(-padding, padding)

    def augment(self, image: torch.Tensor, geometry: Geometry, rng: random.Random) -> torch.Tensor:
        """One image. Padding is black and precedes normalisation, as in DeMo."""
        if image.shape[1:] != self.size:
            image = self.resize(image)
        flip, down, right = geometry
        image = shift(image.flip(2) if flip else image, down, right)
        image = image.sub_(self.mean).div_(self.std)
        return erase(image, rng) if rng.random() < self.settings.RE_PROB else image


def transform_each(
    transform: Transform, images: Decoded, *rngs: random.Random
) -> list[torch.Tensor]:
    """The same transform of each image of a sample, which draws for itself."""
    return fill_absent([None if image is None else transform(image, *rngs) for image in images])


def fill_absent(inputs: Decoded) -> list[torch.Tensor]:
    """Inputs of the network, at least one, with zeros for those that are absent."""
    shown = next(image for image in inputs if image is not None)
    return [torch.zeros_like(shown) if image is None else image for image in inputs]


def shift(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """uint8 (C, H, W) → float32, black outside, as padding by p and cropping at (p - down, p - right); shifts are smaller."""
    return F.pad(image, (right, -right, down, -down)).float()


def erase(image: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Fill a random rectangle of (3, H, W) with normal noise, in place, as timm's erasing does with the global generator."""
    _, height, width = image.shape
    for _ in range(ATTEMPTS):
        area = rng.uniform(*ERASED_AREA) * height * width
        ratio = math.exp(rng.uniform(*map(math.log, ERASED_ASPECT)))
        rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if rows < height and columns < width:
            top, left = rng.randint(0, height - rows), rng.randint(0, width - columns)
            generator = torch.Generator().manual_seed(rng.getrandbits(63))
            noise = torch.randn(3, rows, columns, generator=generator)
            image[:, top : top + rows, left : left + columns] = noise
            break
    return image


def resize_and_normalise(
    cfg: CfgNode,
    size: Sequence[int],
    interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
) -> Transform:
    """uint8 (3, h, w) → float32 (3, *size)."""
    return v2.Compose([v2.Resize(list(size), interpolation=interpolation), normalise(cfg)])


def normalise(cfg: CfgNode) -> Transform:
    """uint8 (3, h, w) → float32 (3, h, w)."""
    scale = v2.ToDtype(torch.float32, scale=True)
    return v2.Compose([scale, v2.Normalize(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD)])
