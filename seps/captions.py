"""Images with captions in batches, for image-text matching.

The loading processes see images alone: texts wait as tokens in the main process, where a batch is put together.
"""
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.progress import progress
from demo_sdtps.datasets.images import ADVICE, decode
from demo_sdtps.datasets.loaders import collated_batches, first_error, loader_kwargs, use_cache
from demo_sdtps.datasets.samplers import ShuffledBatchSampler
from demo_sdtps.datasets.transforms import Transform, crop_transform, resize_transform
from demo_sdtps.seps.image_text import ImageTexts

TEXTS_AT_ONCE = 10_000
"""Texts that the tokenizer gets in one call: enough for its threads, and the progress bar moves."""


@dataclass(frozen=True)
class CaptionBatch:
    """Captions with their images; without long captions the last two of the texts are None."""

    images: torch.Tensor  # (B, 3, H, W) float
    captions: torch.Tensor  # (B, L) long, padded with 0
    lengths: torch.Tensor  # (B,) long
    long_captions: torch.Tensor | None  # (B, L')
    long_lengths: torch.Tensor | None  # (B,)
    image_ids: torch.Tensor  # (B,) long: captions with one id are captions of one image


class ImageDataset(Dataset):
    """The images of samples as (sample's index, (3, H, W)); sample i shows the image `paths[image_of[i]]`.

    A key is an index, or (index, seed) where the transform draws its randomness from the seed.
    """

    def __init__(self, paths: Sequence[str], image_of: Sequence[int], transform: Transform, cache: bool):
        self.paths, self.image_of, self.transform = paths, image_of, transform
        self.images = _decode_all(paths) if cache else None

    def __len__(self) -> int:
        return len(self.image_of)

    def files(self, index: int) -> tuple[str, ...]:
        """What a sample was read from."""
        return (self.paths[self.image_of[index]],)

    def __getitem__(self, key: int | tuple[int, int]) -> tuple[int, torch.Tensor] | UserError:
        index, seed = key if isinstance(key, tuple) else (key, None)
        number = self.image_of[index]
        try:
            image = self.images[number] if self.images else _decode(self.paths[number])
        except UserError as error:
            return error  # raised in a loading process it would arrive wrapped in that process's stack trace
        # A generator of the sample's own: another thread or process may load it.
        draw = () if seed is None else (random.Random(seed),)
        return index, self.transform(image, *draw)


class CaptionLoader(DataLoader):
    """Loads the images of captions, whose tokens (and those of the images' long captions) it keeps for `batches`."""

    def __init__(self, dataset: ImageDataset, captions: list[list[int]], long_captions: list[list[int]] | None, **options):
        super().__init__(dataset, **options)
        self.captions, self.long_captions = captions, long_captions


def train_loader(cfg: CfgNode, split: ImageTexts, tokenizer) -> CaptionLoader:
    """Random batches of captions with their images; call `.batch_sampler.begin(epoch)` before each epoch.

    `tokenizer` is a fast tokenizer of transformers'. Raises `UserError` where there are fewer captions than a batch needs.
    """
    batch_size = cfg.SOLVER.IMS_PER_BATCH
    if len(split.captions) < batch_size:
        raise UserError(f"The training split has {len(split.captions)} captions, fewer than a batch (SOLVER.IMS_PER_BATCH "
                        f"{batch_size}); lower SOLVER.IMS_PER_BATCH.")
    captions = encode_texts(tokenizer, split.captions, cfg.INPUT.MAX_WORDS)
    long_captions = split.long_captions and encode_texts(tokenizer, split.long_captions, cfg.INPUT.MAX_LONG_WORDS)
    sampler = ShuffledBatchSampler(len(captions), batch_size, cfg.SOLVER.SEED)
    cache = use_cache(cfg, split.paths, _images_of)
    dataset = ImageDataset(split.paths, split.image_of, crop_transform(cfg), cache)
    return CaptionLoader(dataset, captions, long_captions, batch_sampler=sampler, **loader_kwargs(cfg, cache, collate))


def image_loader(cfg: CfgNode, split: ImageTexts) -> DataLoader:
    """Every image of the split once, in order, without augmentation; for `image_batches`."""
    cache = use_cache(cfg, split.paths, _images_of)
    dataset = ImageDataset(split.paths, range(len(split.paths)), resize_transform(cfg), cache)
    return DataLoader(dataset, batch_size=cfg.TEST.IMS_PER_BATCH, **loader_kwargs(cfg, cache, collate))


def batches(loader: CaptionLoader) -> Iterator[CaptionBatch]:
    """The loader's batches, the next always on its way. Raises `UserError` for an image that cannot be read."""
    for indices, images in collated_batches(loader):
        image_ids = [loader.dataset.image_of[index] for index in indices]
        captions = padded([loader.captions[index] for index in indices])
        dense = padded([loader.long_captions[image] for image in image_ids]) if loader.long_captions else (None, None)
        yield CaptionBatch(images, *captions, *dense, torch.tensor(image_ids))


def image_batches(loader: DataLoader) -> Iterator[torch.Tensor]:
    """The images (B, 3, H, W) of an `image_loader`. Raises `UserError` for an image that cannot be read."""
    for _, images in collated_batches(loader):
        yield images


def collate(items: list) -> tuple[list[int], torch.Tensor] | UserError:
    """Indices and images (B, 3, H, W) of a batch; the first image that cannot be read takes its place."""
    if error := first_error(items):
        return error
    indices, images = zip(*items, strict=True)
    return list(indices), torch.stack(images)


def encode_texts(tokenizer, texts: Sequence[str], most: int) -> list[list[int]]:
    """Each text as tokens, [CLS] … [SEP], cut at `most` of them; by a fast tokenizer of transformers'."""
    # Not set, the tokenizer warns in every loading process that is forked later; those never call it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    encoded = []
    with progress(total=len(texts), desc="tokenising captions", unit="caption") as bar:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = list(texts[start:start + TEXTS_AT_ONCE])
            encoded += tokenizer(part, truncation=True, max_length=most, return_attention_mask=False,
                                 return_token_type_ids=False)["input_ids"]
            bar.update(len(part))
    return encoded


def padded(token_lists: Iterable[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B, L), padded with 0 to the longest text, and lengths (B,)."""
    tokens = [torch.tensor(tokens) for tokens in token_lists]
    return pad_sequence(tokens, batch_first=True), torch.tensor([len(text) for text in tokens])


def _decode(path: str) -> torch.Tensor:
    """An image as uint8 (3, H, W). Raises `UserError` naming a file that cannot be read."""
    try:
        return decode(path)
    except UserError as error:
        raise UserError(f"{str(error).removesuffix(ADVICE)}; replace it.") from None


def _images_of(path: str) -> tuple[torch.Tensor]:
    return (_decode(path),)


def _decode_all(paths: Sequence[str]) -> list[torch.Tensor]:
    """The decoded images, to be kept in memory."""
    with ThreadPoolExecutor() as pool:
        return list(progress(pool.map(_decode, paths), "reading images", len(paths), unit="image"))
