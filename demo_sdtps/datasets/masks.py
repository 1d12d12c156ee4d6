"""Foreground masks beside the images of synthetic triplets."""

from collections.abc import Sequence
from pathlib import Path

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets.base import Sample

MASK = "MASK"  # folder


def mask_path(sample: Sample) -> Path:
    """File of a triplet's mask: in MASK/ beside the folders of three images, or beside one image that holds all three."""
    image = Path(sample.files[0])
    folder = image.parent.parent if len(sample.paths) == len(MODALITIES) else image.parent
    return folder / MASK / f"{image.stem}.png"


def mask_paths(samples: Sequence[Sample]) -> list[Path]:
    """Files of the triplets' masks, one for each image."""
    return [mask_path(sample) for sample in samples]
