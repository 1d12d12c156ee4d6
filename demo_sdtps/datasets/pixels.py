"""The reader of pixels: files, PIL images, arrays and tensors as uint8 arrays. It needs no torch."""

import math
import os
import re
import stat
import sys
from contextlib import suppress
from typing import Any, BinaryIO, cast

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

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
CHANGED = ("TIFF", "PPM", "JPEG2000")
"""Formats of which Pillow may give other values, or an image that is turned wrongly."""
WIDE = (("I", "PNG"), ("I", "PPM"))  # mode and format of 16 bits
SAVE_AS = "save it as grey, or as PNG in colours, with 8 or 16 bits"
SIGNED_BIG = re.compile(r"[IF];(16|32)B[SF]")
"""Pillow's names of signed numbers and floats whose bytes are in the order big."""
JPEG, TURNED = b"\xff\xd8", (b"Exif\0\0", b"tiff:Orientation")
"""What a JPEG begins with, and what stands before an orientation in its header."""
OTHER_ORDER = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
"""Of two bytes: Pillow's letters for the order little, big and this machine's, and for the other one."""


def read_pixels(item: Any, advice: str = ADVICE, scale: Range | None = PERCENTILES) -> np.ndarray:
    """An image as uint8 (H, W, 3): a path or a PIL image, turned as its header says, an array (H, W, 3), (H, W, 1) or (H, W),
    or a tensor (3, H, W), (1, H, W) or (H, W). More than 8 bits are scaled by `scale`; arrays and tensors are uint8, floats in
    [0, 1], of 16 bits, or any values where `scale` states their range. Where it is None, as for published data sets and masks,
    a file is read as it is stored, of 16 bits the upper 8. Raises `UserError`, which ends with `advice`."""
    if isinstance(item, (str, os.PathLike)):
        path = os.fspath(item)
        try:
            return _file_pixels(path, scale)
        except MemoryError:
            raise
        except Exception as error:  # Pillow raises many types of errors for damaged files
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise UserError(
                f"The image {path} cannot be read ({reason or type(error).__name__}){advice}"
            ) from None
    if isinstance(item, Image.Image):
        try:
            return _image_pixels(item, scale)
        except Exception as error:
            # Pillow reads the file of a PIL image late, and raises many types of errors
            raise UserError(f"A PIL image cannot be read ({error}){advice}") from None
    return _array_pixels(item, advice, scale or PERCENTILES)


def image_size(path: str) -> tuple[int, int]:
    """Width and height in the header of an image; (0, 0) of one that cannot be read."""
    with suppress(Exception), _open_file(path) as file:
        return _open(file).size
    return 0, 0


def to_8_bits(values: np.ndarray, scale: Range) -> np.ndarray:
    """Numbers of any type as uint8, 0 at `scale.low` and where they are none, 255 at `scale.high`."""
    low, high, of_image = scale
    known = values[np.isfinite(values)]
    if of_image and known.size:
        low, high = np.percentile(known, (low, high))
    values = np.nan_to_num(values.astype(np.float64), nan=low)
    return np.rint(((values - low) * (255 / max(high - low, 1e-9))).clip(0, 255)).astype(np.uint8)


def _file_pixels(path: str, scale: Range | None) -> np.ndarray:
    """The image in a file as uint8 (H, W, 3)."""
    # Pillow maps a file that it has the path of into memory, where it turns some TIFFs wrongly
    with _open_file(path) as file:
        pixels = _plain_jpeg(file, may_turn=scale is not None)
        return _opened_pixels(file, scale) if pixels is None else pixels


def _open_file(path: str) -> BinaryIO:
    """A file that is there and has content; to open a pipe would wait for a writer."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file, but a folder, a pipe or a device")
    if not status.st_size:
        raise ValueError("it is empty")
    return open(path, "rb")


def _plain_jpeg(file: BinaryIO, may_turn: bool) -> np.ndarray | None:
    """Intact JPEG as uint8 (H, W, 3), equal to Pillow's pixels; None for any other, which Pillow reads, turns or refuses."""
    if simplejpeg is None or file.read(len(JPEG)) != JPEG:
        return None
    data = JPEG + file.read()
    if may_turn and any(mark in data for mark in TURNED) and is_turned(_open(file)):
        return None
    with suppress(ValueError):
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        # Pillow refuses twice its limit, for all formats
        if colours in PLAIN_COLOURS and height * width <= 2 * (Image.MAX_IMAGE_PIXELS or math.inf):
            return simplejpeg.decode_jpeg(data)
    return None


def _open(file: BinaryIO) -> ImageFile.ImageFile:
    """The image in a file, by its header."""
    file.seek(0)
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(
            f"cannot identify it as an image of {', '.join(FORMATS)}, or its kind of pixels"
        ) from None


def _image_pixels(image: Image.Image, scale: Range | None) -> np.ndarray:
    """A PIL image as uint8 (H, W, 3); one that is not decoded yet, of a kind that Pillow changes, is read from its file."""
    if isinstance(image, ImageFile.ImageFile) and image.tile and not image.tell():
        is_changed = image.format in CHANGED or ";16" in _raw_mode(image)
        if is_changed and (file := cast(BinaryIO, image.fp)):
            pixels = _opened_pixels(file, scale)
            image.load()  # as it would be, which closes its file
            return pixels
    return _as_rgb(image, scale)


def _opened_pixels(file: BinaryIO, scale: Range | None) -> np.ndarray:
    """The image in an open file, by Pillow, as uint8 (H, W, 3)."""
    image = _open(file)
    raw = _raw_mode(image)
    if scale is None:
        return _as_rgb(image, scale)
    _check_depths(image, raw, file)
    if image.tile and image.tile[0].codec_name == "libtiff" and SIGNED_BIG.fullmatch(raw):
        # decompressed into this machine's order, which Pillow takes into account for unsigned numbers alone
        image = _open_as(file, raw.replace("B", "N"))
    kind, _, order = raw.partition(";16")
    if kind in ("RGB", "RGBX", "RGBA") and order in OTHER_ORDER:
        # Pillow keeps the upper byte of each value, and in the other order of bytes the lower one
        both = image, _open_as(file, f"{kind};16{OTHER_ORDER[order]}")
        upper, lower = (np.asarray(_turn(each))[..., :3] for each in both)
    elif raw == "LA;16B":
        # four bytes: the grey value's and alpha's
        upper, lower = np.split(np.asarray(_turn(_open_as(file, "RGBA")))[..., :2], 2, axis=2)
    else:
        return _as_rgb(image, scale)
    return _three(to_8_bits(upper.astype(np.uint16) * 256 + lower, scale))


def _raw_mode(image: ImageFile.ImageFile) -> str:
    """How Pillow unpacks the bytes of an opened image."""
    options = image.tile[0].args if image.tile else None
    return options if isinstance(options, str) else str((options or [""])[0])


def _open_as(file: BinaryIO, raw: str) -> ImageFile.ImageFile:
    """The image in an open file, of which Pillow unpacks the bytes as `raw` says."""
    image = _open(file)
    for place, tile in enumerate(image.tile):
        options = (raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw
        image.tile[place] = tile._replace(args=options)
    return image


def _check_depths(image: ImageFile.ImageFile, raw: str, file: BinaryIO) -> None:
    """Raise `ValueError` for an opened image of which Pillow would give other values than it has."""
    tags, is_grey = getattr(image, "tag_v2", {}), _is_wide(image)
    bits, formats = max(tags.get(258, (8,))), tags.get(339, (1,))
    is_planar = bits > 8 and tags.get(284) == 2
    is_cut = not is_grey and (is_planar or re.fullmatch(r"(CMYK|RGBa);16[LBN]", raw))
    if image.format == "PPM":
        is_cut = raw == "RGB" and _maximum(image) > 255
    if image.format == "JPEG2000":
        file.seek(0)
        data = file.read()
        size = data.find(b"\xff\x4f\xff\x51") + 40  # number of channels, and the depth of each
        depths = data[size + 2 :: 3][: int.from_bytes(data[size : size + 2], "big")]
        is_cut = max(depths) > 7 and [*depths] != [15]
    if is_cut:
        raise ValueError(f"of its more than 8 bits some would be lost; {SAVE_AS}")
    if is_grey and tags.get(262) == 0:
        raise ValueError("its lowest value is white; save it with black as the lowest")
    if bits == 8 and 2 in formats:
        raise ValueError("it has values below 0 in 8 bits; save it with 16 bits")


def _maximum(image: Image.Image) -> int:
    """The value that a PPM's header says is white, where Pillow scales by it; else 0."""
    tiles = getattr(image, "tile", ()) if image.format == "PPM" else ()
    return next((int(tile.args[1]) for tile in tiles if tile.codec_name.startswith("ppm")), 0)


def _is_wide(image: Image.Image) -> bool:
    """Whether an image is grey and has more than 8 bits."""
    return image.mode.startswith("I;16") or image.mode in ("I", "F")


def _turn(image: Image.Image) -> Image.Image:
    """The image as its header turns it."""
    return ImageOps.exif_transpose(image) if is_turned(image) else image


def _three(grey: np.ndarray) -> np.ndarray:
    """(H, W), (H, W, 1) or (H, W, 3) → (H, W, 3)."""
    return np.broadcast_to(grey.reshape(*grey.shape[:2], -1), (*grey.shape[:2], 3)).copy()


def is_turned(image: Image.Image) -> bool:
    """Whether an image's header has a rotation or reflection; a damaged header has none."""
    with suppress(Exception):
        return image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    return False


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


def _as_rgb(image: Image.Image, scale: Range | None) -> np.ndarray:
    """uint8 (H, W, 3) without transparency, by `scale` as `read_pixels`. Grey of 16 bits is scaled here, as Pillow's
    conversion to RGB clips it at 255."""
    kind, maximum, tags = (image.mode, image.format), _maximum(image), getattr(image, "tag_v2", {})
    if scale:
        image = _turn(image)
    if _is_wide(image):
        values = np.asarray(image)
        if not scale and not (kind[0].startswith("I;16") or kind in WIDE):
            raise ValueError(
                "it has 32 bits per pixel, for which white is not defined; save it with 8 or 16 bits"
            )
        if scale and maximum:  # as the file has them; Pillow scales to 16 bits
            values = np.rint(values * (maximum / 65535))
        if kind == ("I", "TIFF") and tags.get(258) == (32,) and tags.get(339, (1,)) == (1,):
            values = values.view(np.uint32)
        grey = to_8_bits(values, scale) if scale else (values // 256).astype(np.uint8)
        return _three(grey)
    if image.mode == "P":  # Pillow warns of its transparency in a direct conversion to RGB
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))
