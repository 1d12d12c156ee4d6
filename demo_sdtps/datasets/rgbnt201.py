"""RGBNT201: persons, four cameras, three folders of images with the same names (docs/train.md)."""

import re
from pathlib import Path

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets.base import Naming, Reader, Sample, triplet_paths

FOLDERS = {"train": "train_171", "query": "test", "gallery": "test"}
# Without the lookahead cam12 would match as camera 1.
NAMING = Naming(
    re.compile(r"(?P<identity>\d{6})_cam(?P<camera>[1-9])(?!\d).*\.jpg"),
    example="000001_cam1_0_00.jpg",
    meaning="identity in six digits, camera from 1 to 9",
)


def read(root: Path, split: str) -> list[Sample]:
    """Samples of a split; query and gallery are both the whole of `test`."""
    names = {modality: modality for modality in MODALITIES}
    triplets = triplet_paths(root / "RGBNT201" / FOLDERS[split], names)
    return [NAMING.sample(paths) for paths in triplets]


TEST = {"triplets": 836, "identities": 30}
TRAIN = {"triplets": 3951, "identities": 171}

READER = Reader(
    read,
    layout="/RGBNT201/{train_171,test}/{RGB,NI,TI}/" + NAMING.example,
    instead=", or run `make demo`, which makes synthetic images in this layout",
    published={"train": TRAIN, "query": TEST, "gallery": TEST, "all": {"cameras": 4}},
)
