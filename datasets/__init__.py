"""Where samples come from: readers of data sets on disk, transforms, samplers and loaders."""
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
"""What DATASETS.NAMES may be. A new data set is one file, its name in small letters, and one line here."""

READERS: dict[str, Reader] = {name: import_module(f"demo_sdtps.datasets.{name.lower()}").READER for name in NAMES}

__all__ = ["NAMES", "READERS", "SPLITS", "Naming", "Reader", "Sample", "identity_labels", "read_splits", "reader_of"]


def reader_of(cfg: CfgNode) -> Reader:
    """The reader of the configured data set. Raises `UserError` for a name that nobody knows."""
    name = cfg.DATASETS.NAMES
    if name not in READERS:
        known = {reader.upper(): reader for reader in READERS}
        near = difflib.get_close_matches(name.upper(), known, n=1)
        hint = f"; the nearest is {known[near[0]]!r}" if near else ""
        raise UserError(f"DATASETS.NAMES is {name!r}, but it must be {' or '.join(map(repr, READERS))}{hint}.")
    return READERS[name]


def read_splits(cfg: CfgNode, splits: Sequence[str] = SPLITS) -> dict[str, list[Sample]]:
    """The samples of the named splits of the configured data set, by split.

    Raises `UserError` for an unknown data set, where the folder, a split or one image of a triplet is missing, or where a
    name does not parse.
    """
    name, root, reader = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR), reader_of(cfg)
    folder = reader.folder_in(root)
    if not folder.is_dir():
        raise UserError(f"The data set {name} is not at {folder}{_found_instead(name, root)}; expected is "
                        f"DATASETS.ROOT_DIR/{reader.layout}. Put it there, or set DATASETS.ROOT_DIR to its parent folder"
                        f"{reader.instead}.")
    found = {}
    for split in splits:
        try:
            found[split] = reader.read(root, split)
        except UserError as error:
            raise UserError(f"{str(error).rstrip('.')}. (The {split} split of {name}; expected layout: "
                            f"DATASETS.ROOT_DIR/{reader.layout})") from None
        if not found[split]:
            raise UserError(f"The {split} split of {name} at {folder} is empty; expected is "
                            f"DATASETS.ROOT_DIR/{reader.layout}.")
    return found


def _found_instead(name: str, root: Path) -> str:
    """For a sentence: what there is of a data set that is not where it is expected, or which one there is."""
    folder = READERS[name].folder
    # Some folders are named otherwise than their data set.
    renamed = folder_in_other_letters(root, folder) or folder_in_other_letters(root, name)
    if renamed:
        return f", but at {renamed}, which must be renamed to {folder}"
    if root.is_dir() and root.resolve().name == folder:
        return f" (is DATASETS.ROOT_DIR, {root}, that folder itself?)"
    others = [other for other, reader in READERS.items() if reader.folder_in(root).is_dir()]
    return f" ({root} holds {others[0]}: is the configuration for another data set?)" if others else ""
