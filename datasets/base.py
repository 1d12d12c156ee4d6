"""What a data set is: samples with identity and camera, and the checks that every reader shares (spec 8)."""
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from config import MODALITIES, UserError

SPLITS = ("train", "query", "gallery")


@dataclass(frozen=True)
class Sample:
    """One triplet: the pictures' paths by modality (RGB, NI, TI), identity as named on disk, camera from 0, scene."""

    paths: tuple[str, str, str]
    identity: int
    camera: int
    scene: int = 0


@dataclass(frozen=True)
class Reader:
    """How one data set lies on disk: `read(root, split)` gives the samples of a split, sorted by path.

    `layout` is shown to the user when something is missing; `by_scene` chooses the protocol that drops gallery samples
    of the query's identity and scene rather than identity and camera (spec 9).
    """

    read: Callable[[Path, str], list[Sample]]
    layout: str
    by_scene: bool = False


def triplet_paths(folder: Path, names: dict[str, str]) -> list[tuple[str, str, str]]:
    """Paths of all triplets in `folder`, whose pictures have one name in one folder per modality; sorted.

    `names` maps each modality to its folder's name. Raises `UserError` for a modality that is missing, as a whole or
    for one picture.
    """
    found = {}
    for modality in MODALITIES:
        pictures = folder / names[modality]
        if not pictures.is_dir():
            raise UserError(f"The folder {pictures} is missing.")
        found[modality] = {path.name for path in pictures.glob("*.jpg")}
    for name in sorted(set().union(*found.values())):
        missing = [modality for modality in MODALITIES if name not in found[modality]]
        if missing:
            there = next(modality for modality in MODALITIES if modality not in missing)
            raise UserError(f"The triplet {name} in {folder} has no {' and no '.join(missing)} picture: "
                            f"{folder / names[missing[0]] / name} is missing; add it or remove the triplet's other "
                            f"pictures such as {folder / names[there] / name}.")
    return [tuple(str(folder / names[modality] / name) for modality in MODALITIES) for name in sorted(found["RGB"])]


def identity_labels(samples: Iterable[Sample]) -> dict[int, int]:
    """Identity on disk → class label 0 … K-1, in sorted order."""
    return {identity: label for label, identity in enumerate(sorted({sample.identity for sample in samples}))}
