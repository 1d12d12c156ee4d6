"""Where samples come from: readers of data sets on disk, transforms, samplers and loaders."""
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from config import UserError
from datasets import rgbnt201
from datasets.base import SPLITS, Reader, Sample, identity_labels

READERS: dict[str, Reader] = {"RGBNT201": rgbnt201.READER}
"""DATASETS.NAMES → reader. A new data set is one file and one line here."""

__all__ = ["READERS", "SPLITS", "Reader", "Sample", "identity_labels", "read_splits"]


def read_splits(cfg: CfgNode, splits: Sequence[str] = SPLITS) -> dict[str, list[Sample]]:
    """The samples of the named splits of the configured data set, by split.

    Raises `UserError` where the folder, a split or one picture of a triplet is missing, or a name does not parse.
    """
    name, root = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR)
    reader = READERS[name]
    folder = root / reader.layout.split("/")[0]
    if not folder.is_dir():
        others = [other for other in READERS if (root / READERS[other].layout.split("/")[0]).is_dir()]
        there = f" ({root} holds {others[0]}: is the configuration for another data set?)" if others else ""
        raise UserError(f"The data set {name} is not at {folder}{there}; expected is DATASETS.ROOT_DIR/{reader.layout}. "
                        "Put it there, set DATASETS.ROOT_DIR to its parent folder, or run `make demo`, which makes "
                        "synthetic pictures in this layout.")
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
