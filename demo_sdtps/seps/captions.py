"""Data loaders of image-text matching: batches of captions with their images.

The loading processes load images only; the tokens of the captions stay in the main process.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from demo_sdtps.seps.image_text import ImageTexts
from demo_sdtps.seps.transforms import CropTransform, resize_transform

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class CaptionBatch:
    """Captions with their images; `long_captions` and `long_lengths` are None for data without long captions."""

    images: torch.Tensor  # (B, 3, H, W) float
    captions: torch.Tensor  # (B, L) long, padded with 0
    lengths: torch.Tensor  # (B,) long
    long_captions: torch.Tensor | None  # (B, L')
    long_lengths: torch.Tensor | None  # (B,)
    image_ids: torch.Tensor  # (B,) long: captions of the same image have the same id


class CaptionLoader(DataLoader):
    """Loads the images of captions; keeps the tokens of captions (per caption) and long captions (per image)."""

    dataset: ImageDataset

    def __init__(
        self,
        dataset: ImageDataset,
        captions: list[list[int]],
        long_captions: list[list[int]] | None,
        **options: Any,
    ):
        super().__init__(dataset, **options)
        self.captions, self.long_captions = captions, long_captions


def caption_loader(
    cfg: CfgNode, split: ImageTexts, tokenizer: "PreTrainedTokenizerBase"
) -> CaptionLoader:
    """Random batches of captions with their images; call `.batch_sampler.begin(epoch)` before each epoch."""
    count, batch_size = len(split.captions), cfg.SOLVER.IMS_PER_BATCH
    sampler = shuffled_batches(count, "captions", batch_size, cfg.SOLVER.SEED)
    texts = encode_captions(cfg, split, tokenizer)
    dataset = _image_dataset(cfg, split.paths, split.image_of, PerModality(CropTransform(cfg)))
    return CaptionLoader(dataset, *texts, batch_sampler=sampler, **loader_kwargs(cfg, dataset))


def image_loader(cfg: CfgNode, split: ImageTexts) -> DataLoader:
    """This process's part of the split's images, in order, without augmentation; for `image_batches`."""
    shard = shard_for_rank(split.paths)
    dataset = _image_dataset(cfg, shard, range(len(shard)), PerModality(resize_transform(cfg)))
    return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg, dataset))


def _image_dataset(
    cfg: CfgNode, files: Sequence[str], image_of: Sequence[int], transform: PerModality
) -> ImageDataset:
    """Samples (images, index): sample i has the image `files[image_of[i]]`."""
    paths = [(file,) for file in files]
    targets = [(index,) for index in range(len(image_of))]
    cache = use_cache(cfg, paths, _decode_images)
    return ImageDataset(paths, targets, transform, cache, _decode_images, image_of)


def caption_batches(loader: CaptionLoader) -> Iterator[CaptionBatch]:
    """Batches of captions with prefetch."""
    for (images,), _, indices in collated_batches(loader):
        image_ids = [loader.dataset.source_of[index] for index in indices]
        captions = pad_texts([loader.captions[index] for index in indices])
        dense: tuple[Any, Any] = (None, None)
        if loader.long_captions:
            dense = pad_texts([loader.long_captions[image] for image in image_ids])
        yield CaptionBatch(images, *captions, *dense, torch.tensor(image_ids))


def image_batches(loader: DataLoader) -> Iterator[torch.Tensor]:
    """Images (B, 3, H, W) of an `image_loader`."""
    for (images,), *_ in collated_batches(loader):
        yield images


def encode_captions(
    cfg: CfgNode, split: ImageTexts, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[list[list[int]], list[list[int]] | None]:
    """Tokens of the captions and, where there are any, of the long captions of a split."""
    captions = encode_texts(tokenizer, split.captions, cfg.INPUT.MAX_WORDS)
    long = split.long_captions
    return captions, encode_texts(tokenizer, long, cfg.INPUT.MAX_LONG_WORDS) if long else None


def encode_texts(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], most: int
) -> list[list[int]]:
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


def _decode_images(paths: Paths) -> Images:
    """The image of one path, uint8 (3, H, W)."""
    assert paths[0]
    return (decode(paths[0], advice="; replace it.", scale=None),)
