"""Images: files, PIL images, arrays and tensors as uint8 pixels; checks of all images of a data set."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageFile, ImageOps

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.ranges import EXAMPLE, PERCENTILES, Range
from demo_sdtps.datasets.base import FORMATS, Sample
from demo_sdtps.runtime.progress import progress

ADVICE = "; replace it or remove its triplet."
OTHER_ORDER = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
"""Of two bytes: Pillow's letters for the order little, big and this machine's, and for the other one."""
Paths = tuple[str | None, ...]  # None: there is no such image
Images = tuple[torch.Tensor | None, ...]
Scales = Mapping[str, Range | None]  # by modality
Size = tuple[int, int]  # height and width
S = TypeVar("S", bound=Sample)
A = TypeVar("A")
B = TypeVar("B")

STORED: Scales = dict.fromkeys(MODALITIES)  # of published data sets


def decode(
    item: Any, advice: str = ADVICE, scale: Range | None = PERCENTILES, least: Size | None = None
) -> torch.Tensor:
    """An image as uint8 (3, H, W) with channels last in memory: a path or a PIL image, turned as its header says, an array
    (H, W, 3), (H, W, 1) or (H, W), or a tensor (3, H, W), (1, H, W) or (H, W). More than 8 bits are scaled by `scale`, of a PIL
    image those that Pillow keeps; arrays and tensors are uint8, floats in [0, 1], of 16 bits, or any values where `scale`
    states their range. Where it is None, as for published data sets, a file is read as it is stored, of 16 bits the upper 8. A
    JPEG file is decoded at the smallest scale whose sides are `least` or more. Raises `UserError`, which ends with `advice`."""
    is_path = isinstance(item, (str, os.PathLike))
    try:
        if is_path:
            # Pillow maps a file that it has the path of into memory, where it turns some TIFFs wrongly
            with open(item, "rb") as file:
                pixels = _file_pixels(file, scale, least)
        elif isinstance(item, Image.Image):
            pixels = _as_rgb(item, scale)
        else:
            pixels = _array_pixels(item, advice, scale or PERCENTILES)
        return torch.from_numpy(pixels).permute(2, 0, 1)
    except (MemoryError, UserError):
        raise
    except Exception as error:  # Pillow raises many types of errors for damaged files
        what = f"The image {os.fspath(item)}" if is_path else "A PIL image"
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(
            f"{what} cannot be read ({reason or type(error).__name__}){advice}"
        ) from None


def image_size(path: str, least: Size | None = None) -> tuple[int, int]:
    """Width and height of an image as `decode` gives it, by its header; (0, 0) of one that cannot be read."""
    with suppress(Exception), open(path, "rb") as file:
        return _open(file, least).size
    return 0, 0


def to_8_bits(values: np.ndarray, scale: Range) -> np.ndarray:
    """Numbers of any type as uint8, 0 at `scale.low` and where they are none, 255 at `scale.high`."""
    low, high, of_image = scale
    known = values[np.isfinite(values)]
    if of_image and known.size:
        low, high = np.percentile(known, (low, high))
    values = np.nan_to_num(values.astype(np.float64), nan=low)
    return np.rint(((values - low) * (255 / max(high - low, 1e-9))).clip(0, 255)).astype(np.uint8)


def _open(file: BinaryIO, least: Size | None = None) -> ImageFile.ImageFile:
    """The image in a file, by its header, in the scale of `decode`."""
    file.seek(0)
    image = Image.open(file, formats=FORMATS)
    if least and image.format in ("JPEG", "MPO"):  # others would be decoded for their header
        with suppress(Exception):  # of a damaged header
            is_turned = image.getexif().get(ExifTags.Base.Orientation, 1) > 4
            image.draft(None, least if is_turned else least[::-1])
    return image


def _file_pixels(file: BinaryIO, scale: Range | None, least: Size | None) -> np.ndarray:
    """The image in an open file as uint8 (H, W, 3)."""
    image = _open(file, least)
    options = image.tile[0].args if image.tile else ""
    # how Pillow unpacks the bytes, such as "RGB;16B"
    raw = options if isinstance(options, str) else str((options or [""])[0])
    if image.tile and image.tile[0][0] == "libtiff" and raw in ("I;16BS", "I;32BS", "F;32BF"):
        # libtiff gives this machine's order of bytes, which Pillow takes for the file's
        image = _open_as(file, raw.replace("B", "N"))
    kind, _, order = raw.partition(";16")
    tags, is_grey = getattr(image, "tag_v2", {}), _is_wide(image)
    if scale is None or (is_grey and tags.get(262) != 0):
        return _as_rgb(image, scale)
    if kind in ("RGB", "RGBX", "RGBA") and order in OTHER_ORDER and tags.get(284) != 2:
        # Pillow keeps the upper byte of each value, and in the other order of bytes the lower one
        both = image, _open_as(file, f"{kind};16{OTHER_ORDER[order]}")
        upper, lower = (np.asarray(_turn(each))[..., :3].astype(np.uint16) for each in both)
        return to_8_bits(upper * 256 + lower, scale)
    if order or is_grey or max(tags.get(258, (8,))) > 8:
        raise ValueError(
            "it would lose some of its more than 8 bits, or has white as the lowest value; save it as grey with black as the "
            "lowest, or as PNG in colours"
        )
    return _as_rgb(image, scale)


def _open_as(file: BinaryIO, raw: str) -> ImageFile.ImageFile:
    """The image in an open file, of which Pillow unpacks the bytes as `raw` says."""
    image = _open(file)
    for place, tile in enumerate(image.tile):
        options = (raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw
        image.tile[place] = tile._replace(args=options)
    return image


def _as_rgb(image: Image.Image, scale: Range | None) -> np.ndarray:
    """uint8 (H, W, 3) without transparency, by `scale` as `decode`, also of 16 bits, which Pillow would clip at 255."""
    is_tiff, tags = image.format == "TIFF", getattr(image, "tag_v2", {})
    if scale:
        image = _turn(image)
    if not _is_wide(image):
        if image.mode == "P":  # Pillow warns of its transparency in a direct conversion to RGB
            image = image.convert("RGBA")
        return np.array(image.convert("RGB"))
    values = np.asarray(image)
    if scale:
        if image.mode == "I" and is_tiff and (tags.get(258), tags.get(339, (1,))) == ((32,), (1,)):
            values = values.view(np.uint32)
        return _three(to_8_bits(values, scale))
    return _three((values // 256).astype(np.uint8))


def _is_wide(image: Image.Image) -> bool:
    """Whether an image is grey and has more than 8 bits."""
    return image.mode.startswith("I;16") or image.mode in ("I", "F")


def _turn(image: Image.Image) -> Image.Image:
    """The image as its header turns it; a damaged header turns nothing."""
    with suppress(Exception):
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            return ImageOps.exif_transpose(image)
    return image


def _three(grey: np.ndarray) -> np.ndarray:
    """(H, W), (H, W, 1) or (H, W, 3) → (H, W, 3)."""
    return np.broadcast_to(grey.reshape(*grey.shape[:2], -1), (*grey.shape[:2], 3)).copy()


def _array_pixels(item: Any, advice: str, scale: Range) -> np.ndarray:
    """Array or tensor as uint8 (H, W, 3), a copy."""
    array = item
    if isinstance(item, torch.Tensor):
        array = (item.double() if item.is_floating_point() else item).detach().cpu().numpy()
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    channels = getattr(array, "shape", ())[2:]
    if (
        getattr(array, "ndim", 0) not in (2, 3)
        or channels not in ((), (1,), (3,))
        or not array.size
    ):
        raise UserError(
            f"An image is {type(item).__name__} {tuple(getattr(item, 'shape', ()))}, but it must be a path, a PIL image, an "
            "array (height, width, 3), by image.transpose(1, 2, 0), a tensor (3, height, width), by image.permute(2, 0, 1), or "
            f"either (height, width){advice}"
        )
    is_small = array.dtype.kind == "f" and 0 <= array.min() <= array.max() <= 1
    if is_small and (scale.of_image or scale.low >= 1):  # in no stated range
        array = (array.astype(np.float32) * np.float32(255.999)).astype(np.uint8)
    elif array.dtype != np.uint8:
        if scale.of_image and (array.dtype.kind not in "iu" or array.dtype.itemsize != 2):
            raise UserError(
                f"An image has values of {array.dtype} from {array.min()} to {array.max()}, but they must be uint8, of 16 "
                f"bits, floats from 0 to 1, or in a range that INPUT.RANGES states, such as {EXAMPLE}{advice}"
            )
        array = to_8_bits(array, scale)
    return _three(array)


def decode_triplet(
    paths: Paths, modalities: Sequence[str], scales: Scales, least: Size | None = None
) -> Images:
    """Images of `modalities`, as `decode` gives them, None for an absent one, of three files, or one with all side by side."""
    if len(paths) == len(MODALITIES):
        pairs = [(paths[MODALITIES.index(name)], scales[name]) for name in modalities]
        return tuple(None if p is None else decode(p, scale=s, least=least) for p, s in pairs)
    image = decode(paths[0], scale=scales[MODALITIES[0]])
    planes = image.chunk(len(MODALITIES), dim=2)
    return tuple(planes[MODALITIES.index(name)] for name in modalities)


def verify(paths: Iterable[str]) -> None:
    """Decode every image once. Raises a `UserError` that lists all files that cannot be read."""
    checked = sorted(set(paths))
    if damaged := unreadable(checked):
        head = f"{len(damaged)} of {len(checked)} images cannot be read; replace them or remove their triplets:"
        raise UserError("\n  ".join([head, *damaged.values()]))


def unreadable(paths: Sequence[str]) -> dict[str, str]:
    """What is wrong with those of the images that cannot be read, by path: "PATH cannot be read (reason)"."""

    def problem(path: str) -> str:
        try:
            decode(path, advice="")
        except UserError as error:
            return str(error).removeprefix("The image ")
        return ""

    problems = zip(paths, parallel(problem, paths, "verifying images"), strict=True)
    return {path: problem for path, problem in problems if problem}


def drop_unreadable(samples: Sequence[S], broken: dict[str, str]) -> list[S]:
    """The samples that have images, without those that cannot be read; what is wrong is added to `broken` by path."""
    broken.update(unreadable(sorted({path for sample in samples for path in sample.files})))
    remaining = [sample.without(broken) for sample in samples]
    return [sample for sample in remaining if sample.files]


def parallel(
    function: Callable[[A], B], items: Sequence[A], title: str, unit: str = "image"
) -> Iterator[B]:
    """Results of `function` in the order of the items, by threads and with a progress bar."""
    with ThreadPoolExecutor() as pool:
        yield from progress(pool.map(function, items), title, len(items), unit=unit)
