"""The state of a training: everything that the next step depends on, as plain tensors, numbers and texts."""
import random
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from demo_sdtps.datasets.samplers import EpochBatchSampler

STATE = ("model", "epoch", "config", "step", "best", "records", "meter", "optimizers", "scaler", "random")
"""Entries of last.pth that resuming needs: `epoch` epochs are done, and `step` steps of the next.

Learning rates follow from the epoch and are in the optimisers' states; the position in the data is `step`, because the batches
of an epoch follow from the seed (datasets/samplers.py)."""


def random_states() -> dict[str, object]:
    """The states of the random generators of Python, NumPy and torch, on all devices."""
    version, words, gauss = random.getstate()
    # NumPy's type does not tell the tuple, which this call gives, from the dict of legacy=False.
    name, keys, *rest = cast(tuple, np.random.get_state())
    return {"python": [version, list(words), gauss], "numpy": [name, keys.tolist(), *rest], "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def set_random_states(states: Mapping) -> None:
    """Set the random generators to the states that `random_states` gave."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
            torch.cuda.set_rng_state(state, device)


def sampler_of(loader: DataLoader) -> EpochBatchSampler:
    """The batch sampler of a training loader; DataLoader's type hides its class."""
    return cast(EpochBatchSampler, loader.batch_sampler)
