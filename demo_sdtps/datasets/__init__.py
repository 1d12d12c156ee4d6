"""Data sets: readers, transforms, samplers and loaders."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.load import OWN as OWN_CONFIGS
from demo_sdtps.datasets.base import SPLITS, VALIDATION, Reader, Sample, identity_labels
from demo_sdtps.datasets.folders import unlabelled_reader
from demo_sdtps.datasets.own import csv_reader, folder_reader
from demo_sdtps.datasets.synthetic import MARKER
from demo_sdtps.runtime.errors import nearest_name

NAMES = (
    "RGBNT201",
    "RGBNT100",
    "MSVR310",
    "WMVeID863",
    "Synthetic",
)
"""Values of DATASETS.NAMES, but for those of own data. A new data set is one file, named in lower case, and one line here."""

OWN_READERS: dict[str, Callable[[CfgNode], Reader]] = {
    "Folder": folder_reader,
    "CSV": csv_reader,
    "Images": unlabelled_reader,
}
"""Readers of own data, which depend on further keys of the configuration; that of Images has no labels."""

READERS: dict[str, Reader] = {
    name: import_module(f"demo_sdtps.datasets.{name.lower()}").READER for name in NAMES
}

__all__ = ["NAMES", "READERS", "SPLITS", "Sample", "find_reader", "identity_labels", "read_splits"]


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


def data_name(cfg: CfgNode, identities: int) -> str:
    """What the images of a training on so many identities are, for the model card, whatever data set they are read as."""
    name, root, reader = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR), find_reader(cfg)
    if (reader.folder_in(root) / MARKER).is_file():
        return "synthetic pedestrians of demo-sdtps synthetic"
    if name in OWN_READERS:
        return f"own images, {root.resolve().stem}"
    published = reader.published.get("train", {}).get("identities", identities)
    is_published = identities in (published, published - round(cfg.DATASETS.VALIDATION * published))
    return name if is_published else f"images in the layout of {name}"


def camera_names(samples: Sequence[Sample]) -> list[str]:
    """What the files call each camera, from camera 0; "" for one that is not among the samples."""
    names = {sample.camera: sample.camera_name for sample in samples}
    return [names.get(camera, "") for camera in range(1 + max(names))]


def trained_cameras(cfg: CfgNode, origin: Mapping[str, Any], cameras: int) -> list[str]:
    """What the files of a training call its cameras, as its checkpoint records; where it does not, as DeMo's, the numbers of a
    published data set, and nothing for own data."""
    reader = READERS.get(cfg.DATASETS.NAMES)
    numbers = range(reader.first_camera, reader.first_camera + cameras) if reader else []
    return origin.get("cameras") or [*map(str, numbers)]


def configs_for(root: Path) -> list[str]:
    """Folders of configs/ for the data that are at a value of DATASETS.ROOT_DIR: that of own data, a table or the folders of
    splits, or those of the published data sets."""
    if root.is_file() or any((root / split).is_dir() for split in SPLITS):
        return [OWN_CONFIGS]
    # RGBNT201's folder may be Synthetic's, which stands after it
    places = {reader.folder_in(root): name for name, reader in READERS.items()}
    return [name for place, name in places.items() if place.is_dir()]


def check_root(root: Path) -> None:
    """Raise `UserError` where `root` is the own folder of a published data set, in place of the one that holds it."""
    folder, parent = root.resolve(), root.resolve().parent
    if folder.is_dir() and any(one.folder_in(parent) == folder for one in READERS.values()):
        raise UserError(
            f"{root} is the own folder of a data set; give the folder that holds it, {root.parent if root.name else parent}."
        )


def completeness(cfg: CfgNode, splits: Mapping[str, Sequence[Sample]]) -> list[str]:
    """A line for each split of own data: how many of its triplets have all modalities, and how many lack which."""
    lines: list[str] = []
    for split, samples in splits.items() if cfg.DATASETS.NAMES in OWN_READERS else ():
        absent = ([m for m in cfg.MODEL.MODALITIES if m not in one.modalities] for one in samples)
        lacking = Counter(map(" and ".join, absent))
        complete = lacking.pop("", 0)
        lacks = "".join(f"; {count:,} lack {names}" for names, count in lacking.most_common())
        lines.append(f"{split}: {complete:,} of {len(samples):,} triplets are complete{lacks}")
    return lines


def check_trained_on(cfg: CfgNode, data_set: str | None, path: Path) -> None:
    """Raise `UserError` where the weights `path` were trained on another data set, None if unknown, than that of `cfg`."""
    name, any_data = cfg.DATASETS.NAMES, (None, *OWN_READERS)
    if name in OWN_READERS or data_set in (name, *any_data, *find_reader(cfg).trained_as):
        return
    raise UserError(
        f"The weights {path} were trained on {data_set}, but the configuration is for {name}; use a configuration "
        f"for {data_set} or other weights."
    )


def split_validation(samples: Sequence[Sample], share: float, is_validation: bool) -> list[Sample]:
    """The samples of a `share` of the identities, or those of the others. They are chosen by a hash: one that is added or
    removed changes the choice by one at most."""
    identities = sorted(identity_labels(samples), key=lambda i: sha256(str(i).encode()).digest())
    held_out = {*identities[: round(share * len(identities))]}
    if share and not held_out:
        raise UserError(
            f"DATASETS.VALIDATION {share} of {len(identities)} identities leaves none out; raise it, or set it to 0"
        )
    if held_out and len(held_out) == len(identities):
        raise UserError(
            f"DATASETS.VALIDATION {share} of {len(identities)} identities leaves none to train on; lower it"
        )
    return [sample for sample in samples if (sample.identity in held_out) == is_validation]


def read_splits(cfg: CfgNode, splits: Sequence[str] = SPLITS) -> dict[str, list[Sample]]:
    """Samples by split: those of `SPLITS`, of which train is without the identities of VALIDATION, and VALIDATION."""
    name, root, reader = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR), find_reader(cfg)
    if not reader.labelled:
        return _readable(cfg, dict.fromkeys(splits, reader.read(root, "")))
    folder, is_own = reader.folder_in(root), name in OWN_READERS
    page = "docs/own_data.md" if is_own else "docs/train.md"
    layout = f"DATASETS.ROOT_DIR{reader.layout}"
    if not folder.exists():
        check_root(root)
        raise UserError(
            f"The data set {name} is not at {folder}; expected is {layout}. Put it there ({page} has its layout), or "
            f"correct DATASETS.ROOT_DIR{reader.instead}."
        )
    samples = {}
    for split in splits:
        try:
            is_validation = split == VALIDATION
            read = reader.read(root, SPLITS[0] if is_validation else split)
            if is_validation or split == SPLITS[0]:
                read = split_validation(read, cfg.DATASETS.VALIDATION, is_validation)
            samples[split] = read
        except UserError as error:
            # own data are read at once
            what = name if is_own else f"The {split} split of {name}"
            place = f"({what}; expected layout: {layout}; {page})"
            raise UserError(f"{str(error).rstrip('.')}. {place}") from None
    samples = _readable(cfg, samples)
    for split in splits:
        if not samples[split]:
            raise UserError(
                f"The {split} split of {name} at {folder} is empty; expected is {layout} ({page})."
            )
    return samples


def _readable(cfg: CfgNode, splits: dict[str, list[Sample]]) -> dict[str, list[Sample]]:
    """The splits, by DATASETS.SKIP_UNREADABLE without images that cannot be read."""
    if not cfg.DATASETS.SKIP_UNREADABLE:
        return splits
    from demo_sdtps.datasets.unreadable import drop_unreadable, left_out  # torch, not for --help

    distinct = dict.fromkeys(sample for samples in splits.values() for sample in samples)
    drop_unreadable([*distinct], left_out)
    remaining: dict[str, list[Sample]] = {}
    for split, samples in splits.items():
        readable = (sample.without(left_out) for sample in samples)
        remaining[split] = [sample for sample in readable if any(sample.paths)]
    return remaining
