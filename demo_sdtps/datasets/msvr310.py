"""MSVR310: vehicles, a folder per identity with three folders of images, evaluated by scene (docs/train.md)."""

import re
from pathlib import Path

from demo_sdtps.config import UserError
from demo_sdtps.datasets.base import (
    VIS_NI_TH,
    Naming,
    Reader,
    Sample,
    existing,
    is_folder,
    is_hidden,
    triplet_paths,
)

FOLDERS = {"train": "bounding_box_train", "query": "query3", "gallery": "bounding_box_test"}
NAMING = Naming(
    re.compile(r"(?P<identity>\d{4})_s(?P<scene>\d{3})_v(?P<camera>[0-7])(?!\d).*\.jpg"),
    example="0001_s001_v1_001.jpg",
    meaning="identity in four digits, scene in three, camera from 0 to 7",
    first_camera=0,
)


def read(root: Path, split: str) -> list[Sample]:
    samples = []
    for folder in sorted(existing(root / "MSVR310" / FOLDERS[split]).iterdir()):
        if is_hidden(folder.name) or not is_folder(folder):
            continue
        triplets = triplet_paths(folder, VIS_NI_TH)
        if not triplets:
            raise UserError(f"The identity folder {folder} holds no images; add them or remove it.")
        samples += [NAMING.sample(paths) for paths in triplets]
    return samples


READER = Reader(
    read,
    layout="/MSVR310/{bounding_box_train,query3,bounding_box_test}/0001/{vis,ni,th}/"
    + NAMING.example,
    by_scene=True,
    first_camera=NAMING.first_camera,
)
