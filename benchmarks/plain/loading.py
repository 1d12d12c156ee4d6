"""Image loading as in published code (docs/method.md): Pillow, one torchvision transform after the other, erasing."""
from collections.abc import Sequence

import torch
from PIL import Image
from timm.data.random_erasing import RandomErasing
from torchvision import transforms
from torchvision.transforms import functional
from yacs.config import CfgNode

BICUBIC = transforms.InterpolationMode.BICUBIC


def decode(path: str) -> Image.Image:
    return Image.open(path).convert("RGB")


def train_transform(cfg: CfgNode) -> transforms.Compose:
    """Augmentation of training by INPUT: PIL image → float32 (3, H, W)."""
    size = list(cfg.INPUT.SIZE_TRAIN)
    return transforms.Compose([
        transforms.Resize(size, interpolation=BICUBIC),
        transforms.RandomHorizontalFlip(cfg.INPUT.PROB),
        transforms.Pad(cfg.INPUT.PADDING),
        transforms.RandomCrop(size),
        transforms.ToTensor(),
        transforms.Normalize(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD),
        RandomErasing(cfg.INPUT.RE_PROB, mode="pixel", max_count=1, device="cpu"),
    ])


def augmented(cfg: CfgNode, image: Image.Image, flipped: bool, top: int, left: int) -> torch.Tensor:
    """The same without erasing, with a given flip and corner of the crop → float32 (3, H, W)."""
    size = list(cfg.INPUT.SIZE_TRAIN)
    image = functional.resize(image, size, interpolation=BICUBIC)
    if flipped:
        image = functional.hflip(image)
    image = functional.crop(functional.pad(image, [cfg.INPUT.PADDING]), top, left, *size)
    return functional.normalize(functional.to_tensor(image), cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD)


def load_triplet(paths: Sequence[str], transform: transforms.Compose) -> list[torch.Tensor]:
    """One (3, H, W) per image."""
    return [transform(decode(path)) for path in paths]
