"""Reads the golden cases in tests/golden: NAME.npz has inputs and outputs of the reference systems, NAME.json settings, names
and shapes of weights, whose values follow from the case's seed and their names."""

import json
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

FOLDER = Path(__file__).parents[1] / "golden"
DEVICE = torch.device("cpu")  # where the tensors of a case come; set by the fixture golden_device


def load_case(name: str) -> SimpleNamespace:
    """`settings` (dict), `arrays` and `weights` (dicts of tensors) of a case."""
    description = json.loads((FOLDER / f"{name}.json").read_text())
    settings = description["settings"]
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]).to(DEVICE) for key in file.files}
    weights = {
        key: torch.from_numpy(weight(key, tuple(shape), settings["seed"])).to(DEVICE)
        for key, shape in description.get("shapes", {}).items()
    }
    return SimpleNamespace(settings=settings, arrays=arrays, weights=weights)


def weight(key: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """The value that a weight of this name has in a case with this seed."""
    if key.endswith("num_batches_tracked"):
        return np.full(shape, 7, dtype=np.int64)
    value = np.random.RandomState(zlib.crc32(f"{seed}:{key}".encode())).standard_normal(shape)
    is_weight = key.endswith("weight")
    if key.endswith("running_var"):
        value = 1 + 0.2 * np.abs(value)
    elif key.endswith(("running_mean", "bias")):
        value = 0.1 * value
    elif key.endswith(".scale"):
        value = 1 + 0.5 * value
    elif is_weight and len(shape) < 2:
        value = 1 + 0.1 * value
    elif is_weight:
        value = value / np.sqrt(np.prod(shape[1:]))
    else:  # tokens, embeddings, CLIP's projection
        value = value / np.sqrt(shape[0] if key.endswith("proj") else 4.0)
    return value.astype(np.float32)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over norm of the reference."""
    actual, expected = actual.detach().double(), expected.double()
    return float((actual - expected).norm() / expected.norm())
