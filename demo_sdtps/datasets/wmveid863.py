"""WMVeID863: vehicles in the wild, three folders of images with the same names, as in RGBNT201 (docs/train.md)."""

from pathlib import Path

from demo_sdtps.datasets.base import VIS_NI_TH, Reader, Sample, triplet_paths
from demo_sdtps.datasets.rgbnt201 import NAMING

FOLDERS = {"train": "train", "query": "query", "gallery": "test"}


def read(root: Path, split: str) -> list[Sample]:
    folder = root / "MSVWild863" / FOLDERS[split]
    return [NAMING.sample(paths) for paths in triplet_paths(folder, VIS_NI_TH)]


READER = Reader(read, layout="/MSVWild863/{train,query,test}/{vis,ni,th}/" + NAMING.example)
