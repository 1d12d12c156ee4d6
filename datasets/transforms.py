"""From a decoded picture to the network's input (spec 7); every modality draws its own augmentation."""
import random
from collections.abc import Callable

import torch
from timm.data.random_erasing import RandomErasing
from torchvision.transforms import v2
from yacs.config import CfgNode

Transform = Callable[[torch.Tensor], torch.Tensor]


class TrainTransform:
    """uint8 (3, h, w) → float32 (3, H, W): resize, flip, pad and crop, normalise, erase (spec 7).

    Draws from `random` and, for the noise of erasing, from torch. Flip, pad and crop are one copy of the picture into
    the black canvas: as transforms of their own they took most of the time beside decoding.
    """

    def __init__(self, cfg: CfgNode):
        self.flip, self.padding = cfg.INPUT.PROB, cfg.INPUT.PADDING
        self.size = torch.Size(cfg.INPUT.SIZE_TRAIN)
        self.resize = v2.Resize(self.size, interpolation=v2.InterpolationMode.BICUBIC)
        # Of grey levels from 0 to 255, not of shares of one.
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in (
            cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD))
        self.erase = RandomErasing(cfg.INPUT.RE_PROB, mode="pixel", max_count=1, device="cpu")

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        if picture.shape[1:] != self.size:
            picture = self.resize(picture)
        if random.random() < self.flip:
            picture = picture.flip(2)
        down, right = (random.randint(-self.padding, self.padding) for _ in range(2))
        # Padding is black, before normalisation, as in the reference.
        return self.erase(moved(picture, down, right).sub_(self.mean).div_(self.std))


def moved(picture: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """uint8 (3, H, W) → float32 (3, H, W), so many pixels further down and right, with black in what becomes free.

    Padding by p on all sides and cropping from (top, left) moves the picture by (p - top, p - left).
    """
    _, height, width = picture.shape
    seen = picture[:, max(-down, 0):max(height - down, 0), max(-right, 0):max(width - right, 0)]
    canvas = torch.zeros(picture.shape)
    top, left = max(down, 0), max(right, 0)
    canvas[:, top:top + seen.shape[1], left:left + seen.shape[2]] = seen
    return canvas


def train_transform(cfg: CfgNode) -> Transform:
    """The augmentation of training."""
    return TrainTransform(cfg)


def test_transform(cfg: CfgNode) -> Transform:
    """uint8 (3, h, w) → float32 (3, H, W): resize and normalise."""
    return v2.Compose([v2.Resize(list(cfg.INPUT.SIZE_TEST), interpolation=v2.InterpolationMode.BILINEAR),
                       v2.ToDtype(torch.float32, scale=True), v2.Normalize(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD)])


test_transform.__test__ = False  # the name is the field's; pytest must not take it for a test
