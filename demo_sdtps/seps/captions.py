"""Batches of captions with their images.

The loading processes load images only; the tokens of the captions stay in the main process.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.datasets.images import Images, Paths, decode
from demo_sdtps.datasets.loaders import (
    ImageDataset,
    collated_batches,
    loader_kwargs,
    shuffled_batches,
    use_cache,
)
from demo_sdtps.datasets.transforms import PerModality
from demo_sdtps.runtime.distributed import shard_for_rank
from demo_sdtps.runtime.transfer import to_device
from demo_sdtps.seps.image_text import ImageTexts
from demo_sdtps.seps.transforms import CropTransform, resize_transform


class Tokens(NamedTuple):
    """Tokens of the captions of a split, and of the long captions, one for each image, None for data without."""

    captions: list[list[int]]
    long_captions: list[list[int]] | None


@dataclass(frozen=True)
class CaptionBatch:
    """Captions with their images."""

    images: torch.Tensor  # (B, 3, H, W) float
    # captions, and long captions where there are any: tokens (B, L) long, padded with 0; lengths (B,) long, read on the CPU
    texts: list[tuple[torch.Tensor, torch.Tensor]]
    image_ids: torch.Tensor  # (B,) long: captions of the same image have the same id

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
    dataset = _image_dataset(cfg, split.paths, split.image_of, PerModality(CropTransform(cfg)))
    return DataLoader(dataset, batch_sampler=sampler, **loader_kwargs(cfg, dataset))


def image_loader(cfg: CfgNode, split: ImageTexts) -> DataLoader:
    """This process's part of the split's images, in order, without augmentation; for `image_batches`."""
    shard = shard_for_rank(split.paths)
    dataset = _image_dataset(cfg, shard, range(len(shard)), PerModality(resize_transform(cfg)))
    return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg, dataset))


def _image_dataset(
    cfg: CfgNode, files: Sequence[str], image_of: Sequence[int], transform: PerModality
) -> ImageDataset:
    """Samples (images, index, id of the image): sample i has the image `files[image_of[i]]`."""
    paths = [(file,) for file in files]
    targets = list(enumerate(image_of))
    cache = use_cache(cfg, paths)
    return ImageDataset(paths, targets, transform, cache, _decode_images, image_of)


def _decode_images(paths: Paths) -> Images:
    """The image of one path, uint8 (3, h, w)."""
    assert paths[0]
    return (decode(paths[0], advice="; replace it.", scale=None),)


def caption_batches(loader: DataLoader, tokens: Tokens) -> Iterator[CaptionBatch]:
    """Batches of captions with prefetch."""
    for (images,), _, indices, image_ids in collated_batches(loader):
        texts = [pad_texts([tokens.captions[index] for index in indices])]
        if tokens.long_captions:
            texts.append(pad_texts([tokens.long_captions[image] for image in image_ids]))
        yield CaptionBatch(images, texts, torch.tensor(image_ids))


def image_batches(loader: DataLoader) -> Iterator[torch.Tensor]:
    """Images (B, 3, H, W) of an `image_loader`."""
    for (images,), *_ in collated_batches(loader):
        yield images


def encode_captions(cfg: CfgNode, split: ImageTexts, tokenizer: Any) -> Tokens:
    """Tokens of a split, truncated to INPUT.MAX_WORDS and INPUT.MAX_LONG_WORDS."""
    captions = encode_texts(tokenizer, split.captions, cfg.INPUT.MAX_WORDS)
    long = split.long_captions
    return Tokens(
        captions, encode_texts(tokenizer, long, cfg.INPUT.MAX_LONG_WORDS) if long else None
    )


def encode_texts(tokenizer: Any, texts: Sequence[str], most: int) -> list[list[int]]:
    """Tokens of each text, [CLS] … [SEP], truncated to `most`."""
    # Avoids a warning of the tokenizer in every loading process that is forked later.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]


def pad_texts(texts: Iterable[Sequence[int] | torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (L) or word vectors (L, C) of texts → (B, longest L) or (B, longest L, C), padded with 0; lengths (B,) on the
    CPU."""
    tensors = [torch.as_tensor(text) for text in texts]
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    return pad_sequence(tensors, batch_first=True), lengths
