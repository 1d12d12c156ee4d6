"""Images from disk: decoding, with an error that names the file, and checks of all of them."""
import warnings
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

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.base import Sample

# A file of a few kilobytes can hold so many pixels that they fill the memory. More than Image.MAX_IMAGE_PIXELS (89 million)
# are refused below, where Pillow warns and reads up to twice as many.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)

ADVICE = "; replace it or remove its triplet."
PLAIN_COLOURS = ("YCbCr", "RGB", "Gray")
"""Colour spaces of JPEGs that become RGB in one way; CMYK is left to Pillow."""
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
"""What an image may be, whatever its name ends in. Not all that Pillow knows: to read an EPS it runs Ghostscript on it."""
GREY_16_BIT, LEVELS_OF_16_BIT = ("I;16", "I;16B", "I;16L", "I;16N"), 256


def decode(path: str) -> torch.Tensor:
    """An image as uint8 (3, H, W), in memory pixel by pixel. Raises `UserError` naming a file that cannot be read."""
    pixels = _plain_jpeg(path)
    if pixels is None:
        with _opened(path) as image:
            pixels = _as_rgb(image)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def decode_triplet(sample: Sample) -> tuple[torch.Tensor, ...]:
    """The images of RGB, NI and TI, each uint8 (3, H, W), from three files or from one that holds them side by side.

    Raises `UserError` naming a file that cannot be read.
    """
    if len(sample.paths) == len(MODALITIES):
        return tuple(map(decode, sample.paths))
    return decode(sample.paths[0]).chunk(len(MODALITIES), dim=2)


def decode_all(samples: Sequence[Sample]) -> list[tuple[torch.Tensor, ...]]:
    """The decoded images of every sample, to be kept in memory. Raises `UserError`."""
    with ThreadPoolExecutor() as pool:
        return list(progress(pool.map(decode_triplet, samples), "reading images", len(samples), unit="triplet"))


def verify(samples: Iterable[Sample]) -> None:
    """Decode every image once. Raises one `UserError` that lists all files that cannot be read."""
    paths = sorted({path for sample in samples for path in sample.paths})
    with ThreadPoolExecutor() as pool:
        errors = [error for error in progress(pool.map(_error_of, paths), "verifying images", len(paths), unit="image")
                  if error]
    if errors:
        raise UserError(f"{len(errors)} of {len(paths)} images cannot be read; replace them or remove their triplets:"
                        + "".join(f"\n  {error}" for error in errors))


def check_widths(paths: Sequence[str], width: int) -> None:
    """Raise `UserError` for the first image that is not `width` pixels wide, or no image; reads their headers alone."""
    with ThreadPoolExecutor() as pool:
        widths = progress(pool.map(_width_of, paths), "checking images", len(paths), unit="image")
        for path, found in zip(paths, widths, strict=True):
            if found != width:
                raise UserError(f"The image {path} is {found} pixels wide, but it must be {width}: {', '.join(MODALITIES)} "
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
        if colours in PLAIN_COLOURS and height * width <= Image.MAX_IMAGE_PIXELS:
            return simplejpeg.decode_jpeg(data)
    except (OSError, ValueError):
        pass
    return None


@contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """The image as PIL opens it, before its pixels are read; what fails inside is told as a `UserError`."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > Image.MAX_IMAGE_PIXELS:
                raise ValueError(f"its {image.width}×{image.height} pixels are too many")
            yield image
    except Exception as error:  # Pillow raises what it meets in a damaged file
        reason = getattr(error, "strerror", None) or ("it is empty" if _is_empty(path) else " ".join(str(error).split()))
        raise UserError(f"The image {path} cannot be read ({reason or type(error).__name__}){ADVICE}") from None


def _as_rgb(image: Image.Image) -> np.ndarray:
    """uint8 (H, W, 3). Colours are as they are stored: transparency and a rotation in the header are left out.

    Of 16 bits the upper 8 count, as Pillow has it for colours; its grey it would cut off at 255, which is nearly black.
    """
    if image.mode in GREY_16_BIT or (image.mode == "I" and image.format in ("PNG", "PPM")):
        grey = np.asarray(image) // LEVELS_OF_16_BIT
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise ValueError("of 32 bits a pixel, which do not say what is white; save it with 8 or 16 bits")
    if image.mode == "P":  # whose transparency Pillow would warn of on the direct way
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))


def _width_of(path: str) -> int:
    with _opened(path) as image:
        return image.width


def _error_of(path: str) -> str | None:
    try:
        decode(path)
    except UserError as error:
        return str(error).removeprefix("The image ").removesuffix(ADVICE)
    return None


def _is_empty(path: str) -> bool:
    with open(path, "rb") as file:
        return not file.read(1)
