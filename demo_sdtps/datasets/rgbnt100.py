"""RGBNT100: vehicles, eight cameras, one image per triplet that holds RGB, NI and TI side by side (docs/train.md)."""

import re
from pathlib import Path

from demo_sdtps.datasets.base import Naming, Reader, Sample, image_names

FOLDERS = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}
NAMING = Naming(
    re.compile(r"(?P<identity>-1|\d{1,9})_c(?P<camera>[1-8])(?!\d).*\.jpg"),
    example="0001_c1_001.jpg",
    meaning="identity in up to nine digits or -1 for junk, camera from 1 to 8",
)
JUNK = -1


def read(root: Path, split: str) -> list[Sample]:
    """Samples of a split without junk images."""
    folder = root / "RGBNT100" / "rgbir" / FOLDERS[split]
    names = sorted(image_names(folder).values())
    samples = [NAMING.sample((str(folder / name),)) for name in names]
    return [sample for sample in samples if sample.identity != JUNK]


READER = Reader(
    read, layout="/RGBNT100/rgbir/{bounding_box_train,query,bounding_box_test}/" + NAMING.example
)
