"""Pictures from disk: decoding, with an error that names the file, and checks of all of them."""
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image

try:
    import simplejpeg
except ImportError:  # not built for this platform: Pillow gives the same pixels, in about half as much time again
    simplejpeg = None

from config import MODALITIES, UserError
from config.progress import progress
from datasets.base import Sample

ADVICE = "; replace it or remove its triplet."
PLAIN_COLOURS = ("YCbCr", "RGB", "Gray")
"""Colour spaces of JPEGs that become RGB in one way; CMYK is left to Pillow."""


def decode(path: str) -> torch.Tensor:
    """A picture as uint8 (3, H, W), in memory pixel by pixel. Raises `UserError` naming a file that cannot be read."""
    pixels = _plain_jpeg(path)
    if pixels is None:
        with _opened(path) as picture:
            pixels = np.array(picture.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def decode_triplet(sample: Sample) -> tuple[torch.Tensor, ...]:
    """The pictures of RGB, NI and TI, each uint8 (3, H, W), from three files or from one that holds them side by side.

    Raises `UserError` naming a file that cannot be read.
    """
    if len(sample.paths) == len(MODALITIES):
        return tuple(map(decode, sample.paths))
    return decode(sample.paths[0]).chunk(len(MODALITIES), dim=2)


def decode_all(samples: Sequence[Sample]) -> list[tuple[torch.Tensor, ...]]:
    """The decoded pictures of every sample, to be kept in memory. Raises `UserError`."""
    with ThreadPoolExecutor() as pool:
        return list(progress(pool.map(decode_triplet, samples), "reading pictures", len(samples), unit="triplet"))


def verify(samples: Iterable[Sample]) -> None:
    """Decode every picture once. Raises one `UserError` that lists all files that cannot be read."""
    paths = sorted({path for sample in samples for path in sample.paths})
    with ThreadPoolExecutor() as pool:
        errors = [error for error in progress(pool.map(_error_of, paths), "verifying pictures", len(paths), unit="picture")
                  if error]
    if errors:
        raise UserError(f"{len(errors)} of {len(paths)} pictures cannot be read; replace them or remove their triplets:"
                        + "".join(f"\n  {error}" for error in errors))


def check_widths(paths: Sequence[str], width: int) -> None:
    """Raise `UserError` for the first picture that is not `width` pixels wide, or no picture; reads their headers alone."""
    with ThreadPoolExecutor() as pool:
        widths = progress(pool.map(_width_of, paths), "checking pictures", len(paths), unit="picture")
        for path, found in zip(paths, widths, strict=True):
            if found != width:
                raise UserError(f"The picture {path} is {found} pixels wide, but it must be {width}: {', '.join(MODALITIES)} "
                                f"side by side, {width // len(MODALITIES)} each{ADVICE}")


def _plain_jpeg(path: str) -> np.ndarray | None:
    """A whole JPEG as uint8 (H, W, 3), the very pixels that Pillow gives; None for anything else.

    What is not whole, too large or no JPEG is for Pillow to read or to tell.
    """
    if simplejpeg is None:
        return None
    try:
        with open(path, "rb") as file:
            data = file.read()
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours in PLAIN_COLOURS and height * width <= (Image.MAX_IMAGE_PIXELS or 0):
            return simplejpeg.decode_jpeg(data)
    except (OSError, ValueError):
        pass
    return None


@contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """The picture as PIL opens it, before its pixels are read; what fails inside is told as a `UserError`."""
    try:
        with Image.open(path) as picture:
            yield picture
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or ("it is empty" if _is_empty(path) else error)
        raise UserError(f"The picture {path} cannot be read ({reason}){ADVICE}") from None


def _width_of(path: str) -> int:
    with _opened(path) as picture:
        return picture.width


def _error_of(path: str) -> str | None:
    try:
        decode(path)
    except UserError as error:
        return str(error).removeprefix("The picture ").removesuffix(ADVICE)
    return None


def _is_empty(path: str) -> bool:
    with open(path, "rb") as file:
        return not file.read(1)
