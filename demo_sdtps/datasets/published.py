"""Readers of the published data sets, and of synthetic pedestrians in the layout of one of them (docs/train.md). A new data set
is a function here that reads one split, and a line of `READERS`."""

import re
from pathlib import Path

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets.base import (
    TRAIN,
    Naming,
    Reader,
    Sample,
    existing,
    image_names,
    is_hidden,
    triplet_paths,
)

BOXES = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}
# folders of the MSV data sets (MSVR310, MSVWild863)
VIS_NI_TH = {"RGB": "vis", "NI": "ni", "TI": "th"}
JUNK = -1  # identity in RGBNT100

# Without the lookaheads cam12 would match as camera 1.
RGBNT201_NAMES = Naming(
    re.compile(r"(?P<identity>\d{6})_cam(?P<camera>[1-9])(?!\d).*\.jpg"),
    example="000001_cam1_0_00.jpg",
)
RGBNT100_NAMES = Naming(
    re.compile(r"(?P<identity>-1|\d{1,9})_c(?P<camera>[1-8])(?!\d).*\.jpg"),
    example="0001_c1_001.jpg",
)
MSVR310_NAMES = Naming(
    re.compile(r"(?P<identity>\d{4})_s(?P<scene>\d{3})_v(?P<camera>[0-7])(?!\d).*\.jpg"),
    example="0001_s001_v1_001.jpg",
    first_camera=0,
)

RGBNT201_TEST = {"triplets": 836, "identities": 30}
RGBNT201_COUNTS = {
    "train": {"triplets": 3951, "identities": 171},
    "query": RGBNT201_TEST,
    "gallery": RGBNT201_TEST,
    "all": {"cameras": 4},
}

MARKER = "synthetic.json"  # file that python -m synthetic writes into its data sets


def read_rgbnt201(root: Path, split: str) -> list[Sample]:
    """Persons, four cameras, three folders of images with the same names; query and gallery are both the whole of `test`."""
    folder = root / "RGBNT201" / ("train_171" if split == TRAIN else "test")
    names = {name: name for name in MODALITIES}
    return [RGBNT201_NAMES.sample(paths) for paths in triplet_paths(folder, names)]


def read_wmveid863(root: Path, split: str) -> list[Sample]:
    """Vehicles in the wild, three folders of images named as in RGBNT201."""
    folder = root / "MSVWild863" / {"gallery": "test"}.get(split, split)
    return [RGBNT201_NAMES.sample(paths) for paths in triplet_paths(folder, VIS_NI_TH)]


def read_rgbnt100(root: Path, split: str) -> list[Sample]:
    """Vehicles, eight cameras, one image per triplet that holds RGB, NI and TI side by side; without junk images."""
    folder = root / "RGBNT100" / "rgbir" / BOXES[split]
    names = sorted(image_names(folder).values())
    samples = [RGBNT100_NAMES.sample((str(folder / name),)) for name in names]
    return [sample for sample in samples if sample.identity != JUNK]


def read_msvr310(root: Path, split: str) -> list[Sample]:
    """Vehicles, a folder per identity with three folders of images, evaluated by scene."""
    samples = []
    place = root / "MSVR310" / (BOXES | {"query": "query3"})[split]
    for folder in sorted(existing(place).iterdir()):
        if is_hidden(folder.name) or not folder.is_dir():
            continue
        samples += [MSVR310_NAMES.sample(paths) for paths in triplet_paths(folder, VIS_NI_TH)]
    return samples


def locate_synthetic(root: Path) -> Path:
    """ROOT_DIR/synthetic/RGBNT201, or ROOT_DIR/RGBNT201 where that is synthetic or ROOT_DIR ends in synthetic."""
    folder = root / "RGBNT201"
    is_synthetic = root.name == "synthetic" or (folder / MARKER).is_file()
    return folder if is_synthetic else root / "synthetic" / "RGBNT201"


RGBNT201_LAYOUT = "/RGBNT201/{train_171,test}/{RGB,NI,TI}/" + RGBNT201_NAMES.example
BOXES_LAYOUT = "/{bounding_box_train,query,bounding_box_test}/"
READERS = {
    "RGBNT201": Reader(read_rgbnt201, layout=RGBNT201_LAYOUT, published=RGBNT201_COUNTS),
    "RGBNT100": Reader(
        read_rgbnt100, layout="/RGBNT100/rgbir" + BOXES_LAYOUT + RGBNT100_NAMES.example
    ),
    "MSVR310": Reader(
        read_msvr310,
        layout="/MSVR310/{bounding_box_train,query3,bounding_box_test}/0001/{vis,ni,th}/"
        + MSVR310_NAMES.example,
        by_scene=True,
        first_camera=0,
    ),
    "WMVeID863": Reader(
        read_wmveid863,
        layout="/MSVWild863/{train,query,test}/{vis,ni,th}/" + RGBNT201_NAMES.example,
    ),
    "Synthetic": Reader(
        lambda root, split: read_rgbnt201(locate_synthetic(root).parent, split),
        layout="[/synthetic]" + RGBNT201_LAYOUT,
        locate=locate_synthetic,
    ),
}
"""By the value of DATASETS.NAMES."""
