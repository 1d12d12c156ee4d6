"""The reader of pixels: files, PIL images, arrays and tensors as uint8 arrays. It needs no torch."""

import os
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

try:
    import simplejpeg
except ImportError:
    # not built for this platform: Pillow gives the same pixels and takes about 1.5 times as long
    simplejpeg = None

from demo_sdtps.config import UserError
from demo_sdtps.config.ranges import EXAMPLE, PERCENTILES, Range
from demo_sdtps.datasets.base import FORMATS

ADVICE = "; replace it or remove its triplet."
# colour spaces of JPEGs that simplejpeg decodes; Pillow decodes CMYK
PLAIN_COLOURS = ("YCbCr", "RGB", "Gray")
WIDE = (("I", "PNG"), ("I", "PPM"))  # mode and format of 16 bits
EXIF = b"Exif\0\0"  # before the header of a JPEG that may turn it


def read_pixels(item: Any, advice: str = ADVICE, scale: Range | None = PERCENTILES) -> np.ndarray:
    """An image as uint8 (H, W, 3): a path or a PIL image, turned as its header says, an array (H, W, 3), (H, W, 1) or (H, W),
    or a tensor (3, H, W), (1, H, W) or (H, W).

    More than 8 bits are scaled by `scale`; arrays and tensors are uint8, floats in [0, 1], of 16 bits, or any values where
    `scale` states their range. Where it is None, as for published data sets and masks, a file is read as it is stored, of 16
    bits the upper 8. Raises `UserError`, which ends with `advice`.
    """
    if isinstance(item, (str, os.PathLike)):
        path = os.fspath(item)
        pixels = _plain_jpeg(path, may_turn=scale is not None)
        return _by_pillow(path, advice, scale) if pixels is None else pixels
    if isinstance(item, Image.Image):
        try:
            return as_rgb(item, scale)
        except Exception as error:
            # Pillow reads the file of a PIL image late, and raises many types of errors
            raise UserError(f"A PIL image cannot be read ({error}){advice}") from None
    return _array_pixels(item, advice, scale or PERCENTILES)


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
            " ".join(str(error).split()) if os.path.getsize(path) else "it is empty"
        )
        raise UserError(
            f"The image {path} cannot be read ({reason or type(error).__name__}){advice}"
        ) from None


def _array_pixels(item: Any, advice: str, scale: Range) -> np.ndarray:
    """Array or tensor as uint8 (H, W, 3), a copy."""
    is_tensor = hasattr(item, "detach")  # torch is not imported here
    if not (is_tensor or isinstance(item, np.ndarray)):
        raise UserError(
            f"An image is {type(item).__name__}, but it must be a path, a PIL image, an array or a tensor{advice}"
        )
    array = item
    if is_tensor:
        array = (item.double() if item.is_floating_point() else item).detach().cpu().numpy()
    if array.ndim == 2:
        array = array[..., None]
    elif is_tensor and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        raise UserError(
            f"An image has the shape {tuple(item.shape)}, but an array must be (height, width, 3), by "
            "image.transpose(1, 2, 0), a tensor (3, height, width), by image.permute(2, 0, 1), or either (height, width)"
            f"{advice}"
        )
    if array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1:
        array = (array.astype(np.float32) * np.float32(255.999)).astype(np.uint8)
    elif array.dtype != np.uint8:
        if scale.of_image and (array.dtype.kind not in "iu" or array.dtype.itemsize != 2):
            raise UserError(
                f"An image has values of {array.dtype} from {array.min()} to {array.max()}, but they must be uint8, of 16 "
                f"bits, floats from 0 to 1, or in a range that INPUT.RANGES states, such as {EXAMPLE}{advice}"
            )
        array = to_8_bits(array, scale)
    return array.repeat(3 // array.shape[2], axis=2)


def as_rgb(image: Image.Image, scale: Range | None) -> np.ndarray:
    """uint8 (H, W, 3) without transparency, by `scale` as `read_pixels`. Grey of 16 bits is scaled here, as Pillow's
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
