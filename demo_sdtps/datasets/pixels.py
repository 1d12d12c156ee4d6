"""Decoding of images to arrays, which needs no torch."""

from contextlib import suppress
from os.path import getsize

import numpy as np
from PIL import ExifTags, Image, ImageOps

try:
    import simplejpeg
except ImportError:
    # not built for this platform: Pillow gives the same pixels and takes about 1.5 times as long
    simplejpeg = None

from demo_sdtps.config import UserError
from demo_sdtps.config.ranges import PERCENTILES, Range
from demo_sdtps.datasets.base import FORMATS

ADVICE = "; replace it or remove its triplet."
# colour spaces of JPEGs that simplejpeg decodes; Pillow decodes CMYK
PLAIN_COLOURS = ("YCbCr", "RGB", "Gray")
WIDE = (("I", "PNG"), ("I", "PPM"))  # mode and format of 16 bits
EXIF = b"Exif\0\0"  # before the header of a JPEG that may turn it


def decode_pixels(path: str, advice: str = ADVICE, scale: Range | None = PERCENTILES) -> np.ndarray:
    """Image as uint8 (H, W, 3), by `scale` as `images.decode`."""
    pixels = _plain_jpeg(path, may_turn=scale is not None)
    return _by_pillow(path, advice, scale) if pixels is None else pixels


def to_8_bits(values: np.ndarray, scale: Range) -> np.ndarray:
    """Numbers of any type as uint8, 0 at `scale.low` and where they are none, 255 at `scale.high`."""
    low, high, of_image = scale
    known = values[np.isfinite(values)]
    if of_image and known.size:
        low, high = np.percentile(known, (low, high))
    values = np.nan_to_num(values.astype(np.float64), nan=low)
    return np.rint(((values - low) * (255 / max(high - low, 1e-9))).clip(0, 255)).astype(np.uint8)


def _plain_jpeg(path: str, may_turn: bool) -> np.ndarray | None:
    """Intact JPEG as uint8 (H, W, 3), equal to Pillow's pixels; None for any other, which Pillow reads, turns or reports."""
    if simplejpeg is None:
        return None
    try:
        with open(path, "rb") as file:
            data = file.read()
        if may_turn and EXIF in data:
            with Image.open(path, formats=FORMATS) as image:
                if is_turned(image):
                    return None
        if simplejpeg.decode_jpeg_header(data)[2] in PLAIN_COLOURS:
            return simplejpeg.decode_jpeg(data)
    except (OSError, ValueError, Image.DecompressionBombError):
        pass
    return None


def is_turned(image: Image.Image) -> bool:
    """Whether an image's header has a rotation or reflection; a damaged header has none."""
    with suppress(Exception):
        return image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    return False


def _by_pillow(path: str, advice: str, scale: Range | None) -> np.ndarray:
    """Image of any of FORMATS as uint8 (H, W, 3)."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return as_rgb(image, scale)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many types of errors for damaged files
        reason = getattr(error, "strerror", None) or (
            " ".join(str(error).split()) if getsize(path) else "it is empty"
        )
        raise UserError(
            f"The image {path} cannot be read ({reason or type(error).__name__}){advice}"
        ) from None


def pil_pixels(image: Image.Image, advice: str, scale: Range) -> np.ndarray:
    """`as_rgb` of a PIL image of the user's."""
    try:
        return as_rgb(image, scale)
    except Exception as error:
        # Pillow reads the file of a PIL image late, and raises many types of errors
        raise UserError(f"A PIL image cannot be read ({error}){advice}") from None


def as_rgb(image: Image.Image, scale: Range | None) -> np.ndarray:
    """uint8 (H, W, 3) without transparency, by `scale` as `images.decode`. Grey of 16 bits is scaled here, as Pillow's
    conversion to RGB clips it at 255."""
    if scale and is_turned(image):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        if scale:
            grey = to_8_bits(np.asarray(image), scale)
        elif image.mode.startswith("I;16") or (image.mode, image.format) in WIDE:
            grey = (np.asarray(image) // 256).astype(np.uint8)
        else:
            raise ValueError(
                "it has 32 bits per pixel, for which white is not defined; save it with 8 or 16 bits"
            )
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode == "P":  # Pillow warns of its transparency in a direct conversion to RGB
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))
