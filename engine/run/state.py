"""The state of a training: all that the next step depends on, as plain tensors, numbers and texts."""
import random
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

STATE = {"model": Mapping, "epoch": int, "config": str, "step": int, "best": float, "records": list, "meter": Mapping,
         "optimizers": list, "scaler": Mapping, "random": list, "data": int}
"""What last.pth holds for a run to be continued, and of which type: `epoch` epochs are done, and `step` steps of the next.

The learning rates are a function of the epoch, and are in the optimisers besides; the place among the data is `step`, as an
epoch's batches follow from the seed (datasets/samplers.py)."""


def random_states() -> dict[str, object]:
    """The states of Python's, numpy's and torch's generators, those of all GPUs too."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()
    return {"python": [version, list(words), gauss], "numpy": [name, keys.tolist(), *rest], "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def set_random_states(states: Mapping) -> None:
    """Put the generators where they were when `random_states` gave these."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
            torch.cuda.set_rng_state(state, device)


def fingerprint(cfg: CfgNode, loader: DataLoader) -> int:
    """A number that another set of training files, or another order of them, changes; not the folder that they are in."""
    root = str(Path(cfg.DATASETS.ROOT_DIR))
    found = 0
    for index in range(len(loader.dataset)):
        for file in loader.dataset.files(index):
            found = zlib.crc32(file.removeprefix(root).encode(errors="surrogateescape"), found)
    return found
