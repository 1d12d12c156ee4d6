"""What the tests of the data share: tiny data sets on disk in the exact layout of each that we read, in which no two images
are alike, and ways to damage them. Every `write_<data set>(root)` writes each identity of TRAIN and TEST, in all cameras and
scenes, below `root`, and returns what its reader must find: samples by split."""

import random
import shlex
from functools import cache
from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tiny import CONFIG

from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.datasets import SPLITS, Sample

PLAIN = ["INPUT.PROB", "0.0", "INPUT.PADDING", "0", "INPUT.RE_PROB", "0.0"]
FIRST = "000001_cam1_0_00.jpg"


def config(root, *opts):
    words = shlex.split(
        "INPUT.SIZE_TRAIN [32,16] INPUT.SIZE_TEST [32,16] MODEL.STRIDE_SIZE [4,4] "
        "SOLVER.IMS_PER_BATCH 8 DATALOADER.NUM_WORKERS 0"
    )
    return load_cfg(CONFIG, ["DATASETS.ROOT_DIR", str(root), *words, *opts])


def catch_message(call, *arguments):
    """The sentence of the `UserError` that a call must raise. pytest.raises would keep frames, and so loading processes."""
    try:
        call(*arguments)
    except UserError as error:
        assert type(error) is UserError
        return str(error)
    raise AssertionError("no error")


def image_folder(root, split="train_171", modality="RGB"):
    return root / "RGBNT201" / split / modality


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-200])


SCALED = (1, 1, 1)
"""The roundings of a normalised pixel (tests/helpers/numeric.py)."""


def normalise(image):
    """A uint8 image with values from -1 to 1, in float64."""
    return (image.double() / 255 - 0.5) / 0.5


def states():
    return torch.get_rng_state(), random.getstate()


TRAIN, TEST = (1, 3, 4, 12, 20), (2, 7, 30, 31)
CAMERAS, SCENES = (0, 1, 7), (1, 2)
SIDE_BY_SIDE, SMALL = (768, 128), (32, 16)
"""(width, height) of RGBNT100's images and of all others."""
BOXES = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}


def write_rgbnt201(root: Path) -> dict[str, list[Sample]]:
    folders = {"train": "train_171", "gallery": "test"}
    splits = _write_three_folders(Path(root) / "RGBNT201", folders, MODALITIES)
    return {"train": splits["train"], "query": splits["gallery"], "gallery": splits["gallery"]}


def write_wmveid863(root: Path) -> dict[str, list[Sample]]:
    folders = {"train": "train", "query": "query", "gallery": "test"}
    return _write_three_folders(Path(root) / "MSVWild863", folders, ("vis", "ni", "th"))


def write_rgbnt100(root: Path) -> dict[str, list[Sample]]:
    """With an image of junk in the gallery, which the reader must leave out."""
    folder, (width, height) = Path(root) / "RGBNT100" / "rgbir", SIDE_BY_SIDE

    def write(folder, number, identity, camera, scene):
        path = folder / f"{identity:04d}_c{camera + 1}_{number:04d}.jpg"
        sizes = width // 3, height
        images = [pixels(identity, number, modality, *sizes) for modality in MODALITIES]
        save(path, np.concatenate(images, axis=1))
        return Sample((str(path),), identity, camera)

    save(folder / "bounding_box_test" / "-1_c3_0001.jpg", pixels(99, 1, "RGB", width, height))
    return _write_splits(folder, BOXES, write)


def write_msvr310(root: Path) -> dict[str, list[Sample]]:
    def write(folder, number, identity, camera, scene):
        name = f"{identity:04d}_s{scene:03d}_v{camera}_{number:03d}.jpg"
        folder = folder / f"{identity:04d}"
        paths = write_triplet(folder, ("vis", "ni", "th"), name, identity, number)
        return Sample(paths, identity, camera, scene)

    return _write_splits(Path(root) / "MSVR310", BOXES | {"query": "query3"}, write)


WRITERS = {
    "RGBNT201": write_rgbnt201,
    "RGBNT100": write_rgbnt100,
    "MSVR310": write_msvr310,
    "WMVeID863": write_wmveid863,
    "Synthetic": lambda root: write_rgbnt201(Path(root) / "synthetic"),
}


def plan(split: str) -> list[tuple[int, int, int, int]]:
    """(number, identity, camera from 0, scene) of a split's triplets; the query has one scene of each camera."""
    rows = product(TRAIN if split == "train" else TEST, CAMERAS, SCENES)
    rows = [row for row in rows if split != "query" or row[2] == 1 + row[1] % 2]
    return [(number, *row) for number, row in enumerate(rows, start=1 + 100 * SPLITS.index(split))]


@cache
def pixels(identity: int, number: int, modality: str, width: int, height: int) -> np.ndarray:
    """(height, width, 3) uint8: the identity's colour in this modality, in the image's own light and with its own noise."""
    place = MODALITIES.index(modality)
    colour = np.random.default_rng((identity, place)).integers(90, 166, size=3)
    rng = np.random.default_rng((identity, place, number))
    light = rng.integers(-60, 61, size=3)
    noise = rng.integers(-30, 31, size=(height // 4, width // 4, 1))
    return (colour + light + noise.repeat(4, axis=0).repeat(4, axis=1)).astype(np.uint8)


def save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_encoded(image.tobytes(), image.shape, path.suffix))


@cache
def _encoded(values: bytes, shape: tuple[int, ...], suffix: str) -> bytes:
    """The file of an image of uint8, which tests write again and again."""
    image = Image.fromarray(np.frombuffer(values, np.uint8).reshape(shape))
    image.save(file := BytesIO(), Image.registered_extensions()[suffix.lower()], quality=95)
    return file.getvalue()


def write_triplet(
    folder: Path, modality_folders: tuple[str, ...], name: str, identity: int, number: int
) -> tuple[str, ...]:
    """Three images of one name in `folder`, one per modality: their paths."""
    paths = [folder / modality_folder / name for modality_folder in modality_folders]
    for modality, path in zip(MODALITIES, paths, strict=True):
        save(path, pixels(identity, number, modality, *SMALL))
    return tuple(map(str, paths))


def _write_three_folders(root, folders, modality_folders):
    def write(folder, number, identity, camera, scene):
        name = f"{identity:06d}_cam{camera + 1}_0_{number:03d}.jpg"
        paths = write_triplet(folder, modality_folders, name, identity, number)
        return Sample(paths, identity, camera)

    return _write_splits(root, folders, write)


def _write_splits(root, folders, write):
    """What `write` makes in the folder of each split, by path."""
    return {
        split: sorted((write(root / name, *row) for row in plan(split)), key=lambda row: row.paths)
        for split, name in folders.items()
    }
