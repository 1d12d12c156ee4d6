"""Reader of image-text data sets in the layout of VSE++, vse_infty and LAPS (docs/seps.md), with all checks."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from demo_sdtps.config import UserError

IMAGES, MAPPING = "images", "id_mapping.json"
CAPTION_FILES = "{train,dev,test}_{caps,ids}.txt, id_mapping.json and images/"


@dataclass(frozen=True)
class ImageTexts:
    """Split: distinct images in order of first appearance, and captions, each of one image.

    `image_of` is the index into `paths` of each caption; `long_captions` has one per image, or is None without a dense file.
    """

    paths: tuple[str, ...]
    captions: tuple[str, ...]
    image_of: tuple[int, ...]
    long_captions: tuple[str, ...] | None


def read_image_texts(root: Path, name: str, split: str, long_captions: str = "auto") -> ImageTexts:
    """Read a split of the data set in `root`/`name`; `long_captions` is auto (if the file exists), yes or no."""
    folder = Path(root) / name
    if not folder.is_dir():
        raise UserError(
            f"The data set {name} is not at {folder}; put it there, with {CAPTION_FILES}, or set DATASETS.ROOT_DIR and "
            "DATASETS.NAMES to its parent folder and its name."
        )
    caps_file, ids_file = folder / f"{split}_caps.txt", folder / f"{split}_ids.txt"
    captions, ids = _lines(caps_file), _lines(ids_file)
    per_id, rest = divmod(len(captions), len(ids))
    if rest:
        raise UserError(
            f"{caps_file} has {len(captions)} captions and {ids_file} {len(ids)} ids; give one id for each caption, or "
            "for each image with equally many captions."
        )
    order: dict[str, int] = {}  # image id → index, by first appearance
    image_of = [order.setdefault(image_id, len(order)) for image_id in ids for _ in range(per_id)]
    paths = _paths(folder, ids_file, order)
    dense = _dense(folder, split, order, long_captions)
    return ImageTexts(paths, tuple(captions), tuple(image_of), dense)


def _paths(folder: Path, ids_file: Path, order: Iterable[str]) -> tuple[str, ...]:
    file = folder / MAPPING
    mapping = _json(_text(file), str(file))
    paths = []
    for image_id in order:
        if image_id not in mapping:
            raise UserError(
                f"The image {image_id!r} of {ids_file} is not in {file}; add it, or remove its captions."
            )
        path = os.path.join(folder, IMAGES, str(mapping[image_id]))
        if not os.path.isfile(path):
            raise UserError(
                f"The image {path} ({image_id!r} of {ids_file}) is missing; add it, or remove its captions."
            )
        paths.append(path)
    return tuple(paths)


def _dense(folder: Path, split: str, order: Iterable[str], wanted: str) -> tuple[str, ...] | None:
    """Long caption of each image id; entries of other images are ignored."""
    file = folder / f"{split}_dense.jsonl"
    if wanted == "no" or (wanted == "auto" and not file.exists()):
        return None
    names_of: dict[str, str] = {}
    for number, line in enumerate(_lines(file), 1):
        content = _json(line, f"{file}, line {number}")
        caption = content.get("caption")
        if not isinstance(caption, str) or not caption.strip() or "id" not in content:
            raise UserError(
                f'{file}, line {number}: the line must be {{"id": "image id", "caption": "text"}}; correct it.'
            )
        # the ids of MS-COCO are numbers in some files
        names_of[str(content["id"])] = caption.strip()
    missing = next((image_id for image_id in order if image_id not in names_of), None)
    if missing is not None:
        raise UserError(
            f"{file} has no caption for the image {missing!r}; add it, or set DATASETS.LONG_CAPTIONS to no."
        )
    return tuple(names_of[image_id] for image_id in order)


def _json(text: str, where: str) -> dict:
    """The JSON object of a text."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: no valid JSON ({error}); correct it.") from None
    if not isinstance(content, dict):
        raise UserError(f"{where}: {text!r:.50} is no JSON object; correct it.")
    return content


def _lines(file: Path) -> list[str]:
    """Stripped lines of a file."""
    # splitlines() would also split at characters that captions may contain (U+2028, U+0085, …).
    lines = [line.strip() for line in _text(file).removesuffix("\n").split("\n")]
    if "" in lines:
        raise UserError(
            f"{file}, line {lines.index('') + 1}: the line is empty; fill it, or remove all that belongs to it."
        )
    return lines


def _text(file: Path) -> str:
    """Text of a UTF-8 file, without a byte order mark."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{file} is missing; a data set has {CAPTION_FILES}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 ({error}); save it as UTF-8.") from None
