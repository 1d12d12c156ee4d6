"""Data sets: readers, transforms, samplers and loaders."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets.base import SPLITS, TRAIN, VALIDATION, Reader, Sample, identity_labels
from demo_sdtps.datasets.folders import unlabelled_reader
from demo_sdtps.datasets.own import csv_reader, folder_reader
from demo_sdtps.datasets.published import READERS
from demo_sdtps.runtime.errors import nearest_name

OWN_READERS: dict[str, Callable[[CfgNode], Reader]] = {
    "Folder": folder_reader,
    "CSV": csv_reader,
    "Images": unlabelled_reader,
}
"""Readers of own data, which depend on further keys of the configuration; that of Images has no labels."""


def find_reader(cfg: CfgNode) -> Reader:
    """Reader of DATASETS.NAMES."""
    name, known = cfg.DATASETS.NAMES, (*READERS, *OWN_READERS)
    if name not in known:
        raise UserError(
            f"DATASETS.NAMES is {name!r}, but it must be {' or '.join(map(repr, known))}{nearest_name(name, known)}."
        )
    return OWN_READERS[name](cfg) if name in OWN_READERS else READERS[name]


def check_labelled(cfg: CfgNode) -> None:
    """Raise `UserError` where the images of DATASETS.NAMES have no labels."""
    if not find_reader(cfg).labelled:
        raise UserError(
            f"DATASETS.NAMES is {cfg.DATASETS.NAMES}, whose images have no labels; give DATASETS.NAMES Folder in its place, "
            "whose names of images have labels, or CSV, a table (docs/own_data.md)."
        )


def split_validation(samples: Sequence[Sample], share: float, is_validation: bool) -> list[Sample]:
    """The samples of a `share` of the identities, or of the others, by a hash: an added identity changes one at most."""
    identities = sorted(identity_labels(samples), key=lambda i: sha256(str(i).encode()).digest())
    held_out = {*identities[: round(share * len(identities))]}
    return [sample for sample in samples if (sample.identity in held_out) == is_validation]


def read_splits(cfg: CfgNode, splits: Sequence[str] = SPLITS) -> dict[str, list[Sample]]:
    """Samples by split: those of `SPLITS`, of which train is without the identities of VALIDATION, and VALIDATION."""
    name, root, reader = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR), find_reader(cfg)
    if reader.labelled and not reader.folder_in(root).exists():
        page = "docs/own_data.md" if name in OWN_READERS else "docs/train.md"
        raise UserError(
            f"The data set {name} is not at {reader.folder_in(root)}; expected is DATASETS.ROOT_DIR{reader.layout}. Put it "
            f"there ({page} has its layout; `make demo` makes synthetic images), or correct DATASETS.ROOT_DIR."
        )
    samples = {}
    for split in splits:
        read = reader.read(root, TRAIN if split == VALIDATION else split)
        if reader.labelled and split in (TRAIN, VALIDATION):
            read = split_validation(read, cfg.DATASETS.VALIDATION, split == VALIDATION)
        if not read:
            raise UserError(
                f"The {split} split of {name} at {root} is empty (DATASETS.VALIDATION {cfg.DATASETS.VALIDATION}); expected is "
                f"DATASETS.ROOT_DIR{reader.layout}."
            )
        samples[split] = read
    return samples
