"""Tiny data sets on disk in the exact layout of each that we read; no two images are alike.

Every `write_<data set>(root)` writes under the DATASETS.ROOT_DIR `root` and returns what its reader must find there: samples
by split. All hold the same: each identity of TRAIN and TEST, seen by every camera in every scene.
"""

from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import SPLITS, Sample

TRAIN, TEST = (1, 3, 4, 12, 20), (2, 7, 30, 31)
CAMERAS, SCENES = (0, 1, 7), (1, 2)
SIDE_BY_SIDE, SMALL = (768, 128), (32, 16)
"""(width, height) of RGBNT100's images and of all others."""


def write_rgbnt201(root: Path) -> dict[str, list[Sample]]:
    by_split = _write_three_folders(
        Path(root) / "RGBNT201", {"train": "train_171", "gallery": "test"}, ("RGB", "NI", "TI")
    )
    return {
        "train": by_split["train"],
        "query": by_split["gallery"],
        "gallery": by_split["gallery"],
    }


def write_synthetic(root: Path) -> dict[str, list[Sample]]:
    return write_rgbnt201(Path(root) / "synthetic")


def write_wmveid863(root: Path) -> dict[str, list[Sample]]:
    folders = {"train": "train", "query": "query", "gallery": "test"}
    return _write_three_folders(Path(root) / "MSVWild863", folders, ("vis", "ni", "th"))


def write_rgbnt100(root: Path) -> dict[str, list[Sample]]:
    """With an image of junk in the gallery, which the reader must leave out."""
    by_split = {}
    for split, name in (
        ("train", "bounding_box_train"),
        ("query", "query"),
        ("gallery", "bounding_box_test"),
    ):
        folder = Path(root) / "RGBNT100" / "rgbir" / name
        by_split[split] = []
        for number, identity, camera, _ in plan(split):
            path = folder / f"{identity:04d}_c{camera + 1}_{number:04d}.jpg"
            parts = [
                pixels(identity, number, modality, SIDE_BY_SIDE[0] // 3, SIDE_BY_SIDE[1])
                for modality in MODALITIES
            ]
            save(path, np.concatenate(parts, axis=1))
            by_split[split].append(Sample((str(path),), identity, camera))
    save(folder / "-1_c3_0001.jpg", pixels(99, 1, "RGB", *SIDE_BY_SIDE))
    return by_split


def write_msvr310(root: Path) -> dict[str, list[Sample]]:
    by_split = {}
    for split, name in (
        ("train", "bounding_box_train"),
        ("query", "query3"),
        ("gallery", "bounding_box_test"),
    ):
        by_split[split] = []
        for number, identity, camera, scene in plan(split):
            folder = Path(root) / "MSVR310" / name / f"{identity:04d}"
            image = f"{identity:04d}_s{scene:03d}_v{camera}_{number:03d}.jpg"
            paths = write_triplet(folder, ("vis", "ni", "th"), image, identity, number)
            by_split[split].append(Sample(paths, identity, camera, scene))
        by_split[split].sort(key=lambda sample: sample.paths)
    return by_split


WRITERS = {
    "RGBNT201": write_rgbnt201,
    "RGBNT100": write_rgbnt100,
    "MSVR310": write_msvr310,
    "WMVeID863": write_wmveid863,
    "Synthetic": write_synthetic,
}


def plan(split: str) -> list[tuple[int, int, int, int]]:
    """(number, identity, camera from 0, scene) of a split's triplets; the query has one scene of each camera."""
    seen = product(TRAIN if split == "train" else TEST, CAMERAS, SCENES)
    if split == "query":
        seen = (
            (identity, camera, scene) for identity, camera, scene in seen if scene == 1 + camera % 2
        )
    return [(number, *one) for number, one in enumerate(seen, start=1 + 100 * SPLITS.index(split))]


def pixels(identity: int, number: int, modality: str, width: int, height: int) -> np.ndarray:
    """(height, width, 3) uint8: the identity's colour in this modality, in the image's own light and with its own noise."""
    place = MODALITIES.index(modality)
    colour = np.random.default_rng((identity, place)).integers(90, 166, size=3)
    own = np.random.default_rng((identity, place, number))
    light, noise = (
        own.integers(-60, 61, size=3),
        own.integers(-30, 31, size=(height // 4, width // 4, 1)),
    )
    return (colour + light + noise.repeat(4, axis=0).repeat(4, axis=1)).astype(np.uint8)


def save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, quality=95)


def write_triplet(
    folder: Path, modality_folders: tuple[str, ...], name: str, identity: int, number: int
) -> tuple[str, ...]:
    """Three images of one name in `folder`, one per modality: their paths."""
    paths = [folder / modality_folder / name for modality_folder in modality_folders]
    for modality, path in zip(MODALITIES, paths, strict=True):
        save(path, pixels(identity, number, modality, *SMALL))
    return tuple(map(str, paths))


def _write_three_folders(root, folders, modality_folders):
    by_split = {}
    for split, name in folders.items():
        by_split[split] = []
        for number, identity, camera, _ in plan(split):
            image = f"{identity:06d}_cam{camera + 1}_0_{number:03d}.jpg"
            paths = write_triplet(root / name, modality_folders, image, identity, number)
            by_split[split].append(Sample(paths, identity, camera))
    return by_split
