"""The data of SEPS (docs/seps.md): the reader of the layout of VSE++, vse_infty and LAPS, transforms, and batches of captions.

The loading processes load images only; the tokens of the captions stay in the main process.
"""

import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
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
    use_cache,
)
from demo_sdtps.datasets.samplers import ShuffledBatchSampler
from demo_sdtps.datasets.transforms import Transform, transform_each
from demo_sdtps.runtime.files import read_json
from demo_sdtps.runtime.gpu import to_device

IMAGES, MAPPING = "images", "id_mapping.json"


class ImageTexts(NamedTuple):
    """Split: distinct images in order of first appearance, and captions, each of one image. A caption is its text, or after
    `encode_captions` the list of its tokens."""

    paths: tuple[str, ...]
    captions: Sequence
    image_of: tuple[int, ...]  # of each caption the index into `paths`
    long_captions: Sequence | None  # one of each image, None without a dense file


def read_caption_splits(
    cfg: CfgNode, names: Sequence[str] = ("train", "dev", "test")
) -> dict[str, ImageTexts]:
    """Splits of DATASETS.NAMES by name."""
    data, root = cfg.DATASETS, Path(cfg.DATASETS.ROOT_DIR)
    return {name: read_image_texts(root, data.NAMES, name, data.LONG_CAPTIONS) for name in names}


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
    mapping = read_json(mapping_file, dict, {}, "correct it")
    paths = [os.path.join(folder, IMAGES, str(mapping.get(image_id, ""))) for image_id in order]
    for image_id, path in zip(order, paths, strict=True):
        if not os.path.isfile(path):
            raise UserError(
                f"The image {image_id!r} of {ids_file} is not in {mapping_file}, or its file {path} is missing; add it, or "
                "remove its captions."
            )
    long = None
    if long_captions == "yes" or (long_captions == "auto" and dense_file.exists()):
        texts = {}
        for line in _lines(dense_file):
            with suppress(AttributeError, KeyError, TypeError, ValueError):  # counts as missing
                row = json.loads(line)
                texts[str(row["id"])] = row["caption"].strip()  # ids of MS-COCO may be numbers
        if missing := [image_id for image_id in order if not texts.get(image_id)]:
            raise UserError(
                f'{dense_file} has no line {{"id": {missing[0]!r}, "caption": "text"}}; add it, or set DATASETS.LONG_CAPTIONS '
                "to no."
            )
        long = tuple(texts[image_id] for image_id in order)
    return ImageTexts(tuple(paths), tuple(captions), tuple(image_of), long)


def _lines(file: Path) -> list[str]:
    """Stripped lines of a UTF-8 file, without a byte order mark."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise UserError(
            f"{file} is missing or not UTF-8 ({error}); put it there, or set DATASETS.ROOT_DIR and DATASETS.NAMES. A data set "
            f"has {{train,dev,test}}_{{caps,ids}}.txt, {MAPPING} and {IMAGES}/."
        ) from None
    # splitlines() would also split at characters that captions may contain (U+2028, U+0085, …).
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    if "" in lines:
        raise UserError(
            f"{file}, line {lines.index('') + 1}: the line is empty; fill it, or remove all that belongs to it."
        )
    return lines


class CropTransform:
    """uint8 (3, h, w) → float32 (3, H, W): random resized crop (Inception), flip, normalise. The generator `rng` of a sample
    gives the seed of what torchvision draws."""

    def __init__(self, cfg: CfgNode):
        size, area = list(cfg.INPUT.SIZE), (cfg.INPUT.MIN_CROP, 1)
        crop = v2.RandomResizedCrop(size, area, interpolation=v2.InterpolationMode.BICUBIC)
        flip = v2.RandomHorizontalFlip(cfg.INPUT.PROB)
        self.transform = v2.Compose([crop, flip, transforms.normalise(cfg)])

    def __call__(self, image: Tensor, rng: random.Random) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.getrandbits(63))
            return self.transform(image)


class CaptionBatch(NamedTuple):
    """Captions with their images."""

    images: Tensor  # (B, 3, H, W) float
    # captions, and long captions where there are any: tokens (B, L) long, padded with 0; lengths (B,) long, read on the CPU
    texts: list[tuple[Tensor, Tensor]]
    image_ids: Tensor  # (B,) long: captions of the same image have the same id

    def to(self, device: torch.device) -> "CaptionBatch":
        """The batch on a device, but for the lengths."""
        texts = [(to_device(tokens, device), lengths) for tokens, lengths in self.texts]
        images, image_ids = to_device(self.images, device), to_device(self.image_ids, device)
        return CaptionBatch(images, texts, image_ids)


def caption_loader(cfg: CfgNode, split: ImageTexts) -> DataLoader:
    """Loads random batches of captions of a split of tokens, for `caption_batches`; `.batch_sampler.begin(epoch)` precedes each
    epoch."""
    solver, count = cfg.SOLVER, len(split.captions)
    sampler = ShuffledBatchSampler(count, "captions", solver.IMS_PER_BATCH, solver.SEED)
    texts = [split.captions]
    if split.long_captions:
        texts.append([split.long_captions[image] for image in split.image_of])
    targets = [*zip(split.image_of, *texts, strict=True)]
    paths = [split.paths[image] for image in split.image_of]
    dataset = _image_dataset(cfg, paths, targets, CropTransform(cfg))
    return DataLoader(dataset, batch_sampler=sampler, **loader_kwargs(cfg))


def image_loader(cfg: CfgNode, split: ImageTexts) -> DataLoader:
    """The split's images, in order, without augmentation."""
    transform = transforms.resize_and_normalise(cfg, cfg.INPUT.SIZE, v2.InterpolationMode.BICUBIC)
    dataset = _image_dataset(cfg, split.paths, [()] * len(split.paths), transform)
    return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg))


def _image_dataset(
    cfg: CfgNode, files: Sequence[str], targets: list[tuple], transform: Transform
) -> ImageDataset:
    """Samples (images, *targets), each of one image."""
    paths: list[Paths] = [(file,) for file in files]
    return ImageDataset(
        paths, targets, partial(transform_each, transform), use_cache(cfg, paths), _decode
    )


def _decode(paths: Paths) -> Images:
    assert paths[0]
    return (decode(paths[0], advice="; replace it.", scale=None),)


def caption_batches(loader: DataLoader) -> Iterator[CaptionBatch]:
    """Batches of a `caption_loader`."""
    for (images,), image_ids, *texts in collated_batches(loader):
        yield CaptionBatch(images, [*map(pad_texts, texts)], torch.tensor(image_ids))


def encode_captions(cfg: CfgNode, split: ImageTexts, tokenizer: Any) -> ImageTexts:
    """The split with the tokens [CLS] … [SEP] of each text, truncated to INPUT.MAX_WORDS and INPUT.MAX_LONG_WORDS."""
    # Avoids a warning of the tokenizer in every loading process that is forked later.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

    def encode(texts: Sequence[str], most: int) -> list[list[int]]:
        return tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]

    captions, long = encode(split.captions, cfg.INPUT.MAX_WORDS), split.long_captions
    long = long and encode(long, cfg.INPUT.MAX_LONG_WORDS)
    return split._replace(captions=captions, long_captions=long)


def pad_texts(texts: Iterable[Sequence[int] | Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens (L) or word vectors (L, C) of texts → (B, longest L) or (B, longest L, C), padded with 0; lengths (B,) on the
    CPU."""
    tensors = [torch.as_tensor(text) for text in texts]
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    return pad_sequence(tensors, batch_first=True), lengths
