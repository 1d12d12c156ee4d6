"""Files of weights, read as plain data."""
import pickle
import struct
import warnings
import zipfile
from pathlib import Path

import torch

LOAD_ERRORS = (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError,
               struct.error, pickle.UnpicklingError, zipfile.BadZipFile)
"""What `load_torch` raises for damaged files and other formats: unpickling random bytes fails in many ways."""


def load_torch(path: Path, without_weights: bool = False) -> object:
    """Content of a file of torch.save: plain tensors, which stay on disk `without_weights`, numbers and texts; no code runs.

    Raises LOAD_ERRORS for another format or a damaged file, and `OSError` for one that may not be opened.
    """
    with warnings.catch_warnings():  # torch warns of a TorchScript archive before it raises
        warnings.simplefilter("ignore")
        # Files from before torch 1.6 are no archives and cannot be mapped.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=without_weights and zipfile.is_zipfile(path))
