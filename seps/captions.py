"""The data of SEPS (docs/seps.md): the reader of the layout of VSE++, vse_infty and LAPS, transforms, and batches of captions.

The loading processes load images only; the tokens of the captions stay in the main process.
"""

import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets import transforms
from demo_sdtps.datasets.images import Images, Paths, decode
from demo_sdtps.datasets.loaders import (
    ImageDataset,
    collated_batches,
    loader_kwargs,
    shuffled_batches,
    use_cache,
)
from demo_sdtps.datasets.transforms import Generator, PerModality, Transform
from demo_sdtps.runtime.gpu import to_device

IMAGES, MAPPING = "images", "id_mapping.json"
CAPTION_FILES = "{train,dev,test}_{caps,ids}.txt, id_mapping.json and images/"
CROP_ASPECT = (3 / 4, 4 / 3)  # range of width over height of a random crop


@dataclass(frozen=True)
class ImageTexts:
    """Split: distinct images in order of first appearance, and captions, each of one image. `image_of` is the index into
    `paths` of each caption; `long_captions` has one per image, or is None without a dense file."""

    paths: tuple[str, ...]
    captions: tuple[str, ...]
    image_of: tuple[int, ...]
    long_captions: tuple[str, ...] | None


def read_image_texts(root: Path, name: str, split: str, long_captions: str = "auto") -> ImageTexts:
    """Read a split of the data set in `root`/`name`; `long_captions` is auto (if the file exists), yes or no. Raises
    `UserError` for a file that is missing, or damaged, or does not fit the others."""
    folder = Path(root) / name
    caps_file, ids_file = folder / f"{split}_caps.txt", folder / f"{split}_ids.txt"
    dense_file, mapping_file = folder / f"{split}_dense.jsonl", folder / MAPPING
    captions, ids = _lines(caps_file), _lines(ids_file)
    per_id, rest = divmod(len(captions), len(ids))
    if rest:
        raise UserError(
            f"{caps_file} has {len(captions)} captions and {ids_file} {len(ids)} ids; give one id for each caption, or "
            "for each image with equally many captions."
        )
    order: dict[str, int] = {}  # image id → index, by first appearance
    image_of = [order.setdefault(image_id, len(order)) for image_id in ids for _ in range(per_id)]
    mapping = _json(mapping_file, _text(mapping_file))
    paths = [os.path.join(folder, IMAGES, str(mapping.get(image_id, ""))) for image_id in order]
    for image_id, path in zip(order, paths, strict=True):
        if not os.path.isfile(path):
            raise UserError(
                f"The image {image_id!r} of {ids_file} is not in {mapping_file}, or its file {path} is missing; add it, or "
                "remove its captions."
            )
    long = None
    if long_captions == "yes" or (long_captions == "auto" and dense_file.exists()):
        rows = [_json(dense_file, line) for line in _lines(dense_file)]
        # the ids of MS-COCO are numbers in some files
        texts = {str(row.get("id")): str(row.get("caption", "")).strip() for row in rows}
        for image_id in order:
            if not texts.get(image_id):
                raise UserError(
                    f'{dense_file} has no line {{"id": {image_id!r}, "caption": "text"}}; add it, or set '
                    "DATASETS.LONG_CAPTIONS to no."
                )
        long = tuple(texts[image_id] for image_id in order)
    return ImageTexts(tuple(paths), tuple(captions), tuple(image_of), long)


def _json(file: Path, text: str) -> dict:
    """The JSON object of a text of a file."""
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError):
        raise UserError(f"{file}: {text[:50]!r} is no JSON object; correct it.") from None


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
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise UserError(
            f"{file} is missing or not UTF-8 ({error}); put it there, or set DATASETS.ROOT_DIR and DATASETS.NAMES. A data "
            f"set has {CAPTION_FILES}."
        ) from None


class CropTransform:
    """uint8 (3, h, w) → float32 (3, H, W): random resized crop (Inception), flip, normalise. All random numbers come from the
    generator `rng`, so that a sample's seed determines its crop."""

    def __init__(self, cfg: CfgNode):
        self.flip, self.least = cfg.INPUT.PROB, cfg.INPUT.MIN_CROP
        self.size, self.normalise = list(cfg.INPUT.SIZE), transforms.normalise(cfg)

    def __call__(self, image: Tensor, rng: Generator = random) -> Tensor:
        _, height, width = image.shape
        box = crop_box(height, width, self.least, rng)
        image = v2.functional.resized_crop(image, *box, self.size, v2.InterpolationMode.BICUBIC)
        return self.normalise(image.flip(2) if rng.random() < self.flip else image)


def crop_box(height: int, width: int, least: float, rng: Generator) -> tuple[int, int, int, int]:
    """Top, left, rows and columns of a random crop with at least the share `least` of the area. Where no attempt fits, the
    centre, which of an image longer than 4:3 is a part."""
    for columns, rows in transforms.random_sizes(height, width, (least, 1), CROP_ASPECT, rng):
        if 0 < rows <= height and 0 < columns <= width:
            return rng.randint(0, height - rows), rng.randint(0, width - columns), rows, columns
    narrowest, widest = CROP_ASPECT
    rows, columns = min(height, round(width / narrowest)), min(width, round(height * widest))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


class Tokens(NamedTuple):
    """Tokens of the captions of a split, and of the long captions, one for each image, None for data without."""

    captions: list[list[int]]
    long_captions: list[list[int]] | None


@dataclass(frozen=True)
class CaptionBatch:
    """Captions with their images."""

    images: Tensor  # (B, 3, H, W) float
    # captions, and long captions where there are any: tokens (B, L) long, padded with 0; lengths (B,) long, read on the CPU
    texts: list[tuple[Tensor, Tensor]]
    image_ids: Tensor  # (B,) long: captions of the same image have the same id

    def to(self, device: torch.device) -> "CaptionBatch":
        """The batch on a device, but for the lengths."""
        images, image_ids = (to_device(one, device) for one in (self.images, self.image_ids))
        texts = [(to_device(tokens, device), lengths) for tokens, lengths in self.texts]
        return CaptionBatch(images, texts, image_ids)


def caption_loader(cfg: CfgNode, split: ImageTexts) -> DataLoader:
    """Loads the images of random batches of captions, for `caption_batches`; `.batch_sampler.begin(epoch)` precedes each
    epoch."""
    count, batch_size = len(split.captions), cfg.SOLVER.IMS_PER_BATCH
    sampler = shuffled_batches(count, "captions", batch_size, cfg.SOLVER.SEED)
    dataset = _image_dataset(cfg, split.paths, split.image_of, CropTransform(cfg))
    return DataLoader(dataset, batch_sampler=sampler, **loader_kwargs(cfg))


def image_loader(cfg: CfgNode, split: ImageTexts) -> DataLoader:
    """The split's images, in order, without augmentation; for `image_batches`."""
    transform = transforms.resize_and_normalise(cfg, cfg.INPUT.SIZE, v2.InterpolationMode.BICUBIC)
    dataset = _image_dataset(cfg, split.paths, range(len(split.paths)), transform)
    return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg))


def _image_dataset(
    cfg: CfgNode, files: Sequence[str], image_of: Sequence[int], transform: Transform
) -> ImageDataset:
    """Samples (images, index, id of the image): sample i has the image `files[image_of[i]]`."""
    paths: list[Paths] = [(files[image],) for image in image_of]
    targets, cache = list(enumerate(image_of)), use_cache(cfg, paths)
    return ImageDataset(paths, targets, PerModality(transform), cache, _decode_image)


def _decode_image(paths: Paths) -> Images:
    assert paths[0]
    return (decode(paths[0], advice="; replace it.", scale=None),)


def caption_batches(loader: DataLoader, tokens: Tokens) -> Iterator[CaptionBatch]:
    """Batches of captions."""
    for (images,), indices, image_ids in collated_batches(loader):
        texts = [pad_texts([tokens.captions[index] for index in indices])]
        if tokens.long_captions:
            texts.append(pad_texts([tokens.long_captions[image] for image in image_ids]))
        yield CaptionBatch(images, texts, torch.tensor(image_ids))


def image_batches(loader: DataLoader) -> Iterator[Tensor]:
    """Images (B, 3, H, W) of an `image_loader`."""
    for (images,), *_ in collated_batches(loader):
        yield images


def encode_captions(cfg: CfgNode, split: ImageTexts, tokenizer: Any) -> Tokens:
    """Tokens of a split, truncated to INPUT.MAX_WORDS and INPUT.MAX_LONG_WORDS."""
    captions = encode_texts(tokenizer, split.captions, cfg.INPUT.MAX_WORDS)
    if split.long_captions is None:
        return Tokens(captions, None)
    long = encode_texts(tokenizer, split.long_captions, cfg.INPUT.MAX_LONG_WORDS)
    return Tokens(captions, long)


def encode_texts(tokenizer: Any, texts: Sequence[str], most: int) -> list[list[int]]:
    """Tokens of each text, [CLS] … [SEP], truncated to `most`."""
    # Avoids a warning of the tokenizer in every loading process that is forked later.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]


def pad_texts(texts: Iterable[Sequence[int] | Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens (L) or word vectors (L, C) of texts → (B, longest L) or (B, longest L, C), padded with 0; lengths (B,) on the
    CPU."""
    tensors = [torch.as_tensor(text) for text in texts]
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    return pad_sequence(tensors, batch_first=True), lengths
