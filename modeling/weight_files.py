"""Files of weights: read as plain data, after a look at their size."""
import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from demo_sdtps.config import UserError

LOAD_ERRORS = (OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
               ArithmeticError, MemoryError, struct.error, pickle.UnpicklingError, zipfile.BadZipFile)
"""What `load_torch` raises for damaged files and other formats: unpickling random bytes fails in many ways."""

ZIP = b"PK\x03\x04"  # first bytes of a zip archive, the format of torch.save
MOST_EXPANSION = 4  # times its size that the content of a file may have; torch.save itself does not compress


def load_torch(path: Path, without_weights: bool = False) -> object:
    """Content of a file of torch.save: plain tensors, which stay on disk `without_weights`, numbers and texts; no code runs.

    Raises `UserError` for a file that may not be read or whose content is far larger than the file, LOAD_ERRORS for any other
    that cannot be read.
    """
    is_archive = check_archive(path)
    with warnings.catch_warnings():  # torch warns of a TorchScript archive before it raises
        warnings.simplefilter("ignore")
        # Files from before torch 1.6 are no archives and cannot be mapped.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=without_weights and is_archive)


def check_archive(path: Path) -> bool:
    """Whether a file of weights is a zip archive. Raises `UserError` for a file that may not be read, or an archive whose
    content is far larger than itself.

    A few megabytes of deflated zeros would fill the memory before torch finds out what they are.
    """
    try:
        with open(path, "rb") as file:
            is_archive = file.read(len(ZIP)) == ZIP
            content = sum(part.file_size for part in zipfile.ZipFile(file).infolist()) if is_archive else 0
    except PermissionError as error:
        raise UserError(f"The weights {path} may not be read ({error.strerror}); correct the permissions of the file, or give "
                        "another.") from None
    size = path.stat().st_size
    if content > MOST_EXPANSION * size:
        raise UserError(f"The weights {path} are compressed: their {size:,} bytes expand to {content:,}, far more than weights "
                        "do; give another file.")
    return is_archive


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Inside, a `ValueError` about weights of the file is raised as `UserError`."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"The weights {path} cannot be used: {error}; give another file.") from None
