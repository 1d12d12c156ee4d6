"""Data sets: readers, transforms, samplers and loaders."""
import difflib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets.base import SPLITS, Naming, Reader, Sample, folder_in_other_letters, identity_labels

NAMES = (
    "RGBNT201",
    "RGBNT100",
    "MSVR310",
    "WMVeID863",
    "Synthetic",
)
"""Values of DATASETS.NAMES. A new data set is one file, named in lower case, and one line here."""

READERS: dict[str, Reader] = {name: import_module(f"demo_sdtps.datasets.{name.lower()}").READER for name in NAMES}

__all__ = ["NAMES", "READERS", "SPLITS", "Naming", "Reader", "Sample", "data_folders", "identity_labels", "read_splits",
           "reader_of"]


def reader_of(cfg: CfgNode) -> Reader:
    """Reader of DATASETS.NAMES. Raises `UserError` for an unknown name."""
    name = cfg.DATASETS.NAMES
    if name not in READERS:
        known = {reader.upper(): reader for reader in READERS}
        near = difflib.get_close_matches(name.upper(), known, n=1)
        hint = f"; the nearest is {known[near[0]]!r}" if near else ""
        raise UserError(f"DATASETS.NAMES is {name!r}, but it must be {' or '.join(map(repr, READERS))}{hint}.")
    return READERS[name]


def data_folders(cfg: CfgNode) -> list[str | Path]:
    """Folder of the data set, in which nothing is written but masks. Raises `UserError` for an unknown name."""
    return [reader_of(cfg).folder_in(Path(cfg.DATASETS.ROOT_DIR))]


def read_splits(cfg: CfgNode, splits: Sequence[str] = SPLITS) -> dict[str, list[Sample]]:
    """Samples by split. Raises `UserError` for an unknown or missing data set, a missing split or image, or a wrong name."""
    name, root, reader = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR), reader_of(cfg)
    folder = reader.folder_in(root)
    if not folder.is_dir():
        raise UserError(f"The data set {name} is not at {folder}{_found_instead(name, root)}; expected is "
                        f"DATASETS.ROOT_DIR/{reader.layout}. Put it there (docs/data.md says where to get it), or set "
                        f"DATASETS.ROOT_DIR to its parent folder{reader.instead}.")
    found = {}
    for split in splits:
        try:
            found[split] = reader.read(root, split)
        except UserError as error:
            raise UserError(f"{str(error).rstrip('.')}. (The {split} split of {name}; expected layout: "
                            f"DATASETS.ROOT_DIR/{reader.layout})") from None
        if not found[split]:
            raise UserError(f"The {split} split of {name} at {folder} is empty; expected is DATASETS.ROOT_DIR/{reader.layout}.")
    return found


def _found_instead(name: str, root: Path) -> str:
    """Part of a message: a renamed folder of the data set, a wrong level, or another data set in `root`."""
    folder = READERS[name].folder
    # The names of some folders differ from those of their data sets.
    renamed = folder_in_other_letters(root, folder) or folder_in_other_letters(root, name)
    if renamed:
        return f", but at {renamed}, which must be renamed to {folder}"
    if root.is_dir() and root.resolve().name == folder:
        return f" (is DATASETS.ROOT_DIR, {root}, that folder itself?)"
    others = [other for other, reader in READERS.items() if reader.folder_in(root).is_dir()]
    return f" ({root} holds {others[0]}: is the configuration for another data set?)" if others else ""
