"""Decoding of images to arrays, which needs no torch."""

from os.path import getsize

import numpy as np
from PIL import Image

try:
    import simplejpeg
except ImportError:
    # not built for this platform: Pillow gives the same pixels and takes about 1.5 times as long
    simplejpeg = None

from demo_sdtps.config import UserError
from demo_sdtps.datasets.base import FORMATS

ADVICE = "; replace it or remove its triplet."
# colour spaces of JPEGs that simplejpeg decodes; Pillow decodes CMYK
PLAIN_COLOURS = ("YCbCr", "RGB", "Gray")


def decode_pixels(path: str, advice: str = ADVICE) -> np.ndarray:
    """Image as uint8 (H, W, 3)."""
    pixels = _plain_jpeg(path)
    return _by_pillow(path, advice) if pixels is None else pixels


def _plain_jpeg(path: str) -> np.ndarray | None:
    """Intact JPEG as uint8 (H, W, 3), equal to Pillow's pixels; None for any other file, which Pillow reads or reports."""
    if simplejpeg is None:
        return None
    try:
        with open(path, "rb") as file:
            data = file.read()
        if simplejpeg.decode_jpeg_header(data)[2] in PLAIN_COLOURS:
            return simplejpeg.decode_jpeg(data)
    except (OSError, ValueError):
        pass
    return None


def _by_pillow(path: str, advice: str) -> np.ndarray:
    """Image of any of FORMATS as uint8 (H, W, 3)."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return as_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many types of errors for damaged files
        reason = getattr(error, "strerror", None) or (
            " ".join(str(error).split()) if getsize(path) else "it is empty"
        )
        raise UserError(
            f"The image {path} cannot be read ({reason or type(error).__name__}){advice}"
        ) from None


def as_rgb(image: Image.Image) -> np.ndarray:
    """uint8 (H, W, 3) without transparency and rotation; of 16-bit values the upper 8 bits, where Pillow clips grey at 255."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        grey = np.asarray(image) // 256
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise ValueError(
            "it has 32 bits per pixel, for which white is not defined; save it with 8 or 16 bits"
        )
    if image.mode == "P":  # Pillow warns of its transparency in a direct conversion to RGB
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))
