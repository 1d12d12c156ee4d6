"""From a decoded image to the network's input (docs/method.md); every modality draws its own augmentation."""
import math
import random
from collections.abc import Callable, Sequence

import torch
from torchvision.transforms import v2
from yacs.config import CfgNode

Transform = Callable[..., torch.Tensor]

ERASED_AREA, ERASED_ASPECT, ATTEMPTS = (0.02, 1 / 3), (0.3, 1 / 0.3), 10
"""Share of the image, height over width, and draws of a rectangle until one fits (Zhong et al., Random Erasing, 2020)."""
CROP_ASPECT = (3 / 4, 4 / 3)
"""Width over height of a random crop."""


class TrainTransform:
    """uint8 (3, h, w) → float32 (3, H, W): resize, flip, pad and crop, normalise, erase (docs/method.md).

    Draws from a generator that it is called with, by default from Python's own, and from no other. Flip, pad and crop are
    one copy of the image into the black canvas: as transforms of their own they took most of the time beside decoding.
    """

    def __init__(self, cfg: CfgNode):
        self.flip, self.padding = cfg.INPUT.PROB, cfg.INPUT.PADDING
        self.size = torch.Size(cfg.INPUT.SIZE_TRAIN)
        self.resize = v2.Resize(self.size, interpolation=v2.InterpolationMode.BICUBIC)
        # Of grey levels from 0 to 255, not of shares of one.
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in (
            cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD))
        self.erasing = cfg.INPUT.RE_PROB

    def __call__(self, image: torch.Tensor, draw: random.Random = random) -> torch.Tensor:
        if image.shape[1:] != self.size:
            image = self.resize(image)
        if draw.random() < self.flip:
            image = image.flip(2)
        down, right = (draw.randint(-self.padding, self.padding) for _ in range(2))
        # Padding is black, before normalisation, as in the reference.
        image = pad_and_crop(image, down, right).sub_(self.mean).div_(self.std)
        return erase(image, draw) if draw.random() < self.erasing else image


def pad_and_crop(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """uint8 (3, H, W) → float32 (3, H, W), so many pixels further down and right, with black in what becomes free.

    Padding by p on all sides and cropping from (top, left) moves the image by (p - top, p - left).
    """
    _, height, width = image.shape
    seen = image[:, max(-down, 0):max(height - down, 0), max(-right, 0):max(width - right, 0)]
    canvas = torch.zeros(image.shape)
    top, left = max(down, 0), max(right, 0)
    canvas[:, top:top + seen.shape[1], left:left + seen.shape[2]] = seen
    return canvas


def erase(image: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Put normal noise, a number per pixel and channel, into a random rectangle of an image (3, H, W), in place.

    timm's random erasing with mode pixel, but from the generator given: timm draws from the process's, which a thread that
    loads would share with training.
    """
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


def train_transform(cfg: CfgNode) -> Transform:
    """The augmentation of training."""
    return TrainTransform(cfg)


def test_transform(cfg: CfgNode) -> Transform:
    """uint8 (3, h, w) → float32 (3, H, W): resize and normalise."""
    return _resized(cfg, cfg.INPUT.SIZE_TEST, v2.InterpolationMode.BILINEAR)


def _resized(cfg: CfgNode, size: Sequence[int], interpolation: v2.InterpolationMode) -> Transform:
    return v2.Compose([v2.Resize(list(size), interpolation=interpolation), v2.ToDtype(torch.float32, scale=True),
                       v2.Normalize(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD)])


class CropTransform:
    """uint8 (3, h, w) → float32 (3, H, W): a random part of the image at the network's size, flip, normalise.

    Draws as `TrainTransform` does; of one image alone, as image-text matching has it (Inception's crop).
    """

    def __init__(self, cfg: CfgNode):
        self.flip, self.least = cfg.INPUT.PROB, cfg.INPUT.MIN_CROP
        self.size = list(cfg.INPUT.SIZE)
        self.normalise = v2.Compose([v2.ToDtype(torch.float32, scale=True),
                                     v2.Normalize(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD)])

    def __call__(self, image: torch.Tensor, draw: random.Random = random) -> torch.Tensor:
        box = crop_box(*image.shape[1:], self.least, draw)
        image = v2.functional.resized_crop(image, *box, self.size, v2.InterpolationMode.BICUBIC)
        return self.normalise(image.flip(2) if draw.random() < self.flip else image)


def crop_box(height: int, width: int, least: float, draw: random.Random) -> tuple[int, int, int, int]:
    """A random part of an image, of at least the share `least` of its area: top, left, rows, columns.

    Where no draw fits, as in a very long image, its middle.
    """
    for _ in range(ATTEMPTS):
        area = draw.uniform(least, 1) * height * width
        aspect = math.exp(draw.uniform(*map(math.log, CROP_ASPECT)))
        rows, columns = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < rows <= height and 0 < columns <= width:
            return draw.randint(0, height - rows), draw.randint(0, width - columns), rows, columns
    narrowest, widest = CROP_ASPECT
    rows, columns = min(height, round(width / narrowest)), min(width, round(height * widest))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def crop_transform(cfg: CfgNode) -> Transform:
    """The augmentation of training on images with captions."""
    return CropTransform(cfg)


def resize_transform(cfg: CfgNode) -> Transform:
    """uint8 (3, h, w) → float32 (3, H, W) for evaluation of image-text matching: resize as training does, normalise."""
    return _resized(cfg, cfg.INPUT.SIZE, v2.InterpolationMode.BICUBIC)


test_transform.__test__ = False  # the name is the field's; pytest must not take it for a test
