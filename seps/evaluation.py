"""Evaluation of SEPS (docs/seps.md): each image and each caption is encoded once, then all pairs are compared; recalls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.datasets.images import verify
from demo_sdtps.datasets.loaders import shuffled_batches
from demo_sdtps.evaluation.extraction import prepare_evaluation
from demo_sdtps.modeling.checkpoints.loading import fill_model, read_weights
from demo_sdtps.modeling.precision import check_features, check_finite, evaluating
from demo_sdtps.runtime.gpu import to_device
from demo_sdtps.runtime.progress import progress
from seps.captions import (
    ImageTexts,
    Tokens,
    encode_captions,
    image_batches,
    image_loader,
    pad_texts,
    read_image_texts,
)
from seps.model import SEPS, load_tokenizer, make_seps

RECALL_RANKS = (1, 5, 10)


def retrieval(similarity: Tensor, image_of: Tensor) -> dict[str, float]:
    """Recalls of similarities (images, captions) in percent: {"i2t R@1": …, …, "t2i R@10": …, "rSum": …}. image_of (captions,):
    the row of each caption's image; an image has one caption or more. i2t R@k counts an image where any of its captions is
    among the k most similar. A match ranks after others of exactly its similarity, whatever the order."""
    images, captions = similarity.shape
    matched = similarity[image_of, torch.arange(captions)]
    best = matched.new_zeros(images)
    best.scatter_reduce_(0, image_of, matched, "amax", include_self=False)
    # Not counted as ahead: the match itself and equally similar captions of the same image.
    equal = torch.bincount(image_of[matched == best[image_of]], minlength=images)
    ahead = {  # captions retrieved by an image, images retrieved by a caption
        "i2t": (similarity >= best[:, None]).count_nonzero(dim=1) - equal,
        "t2i": (similarity >= matched).count_nonzero(dim=0) - 1,
    }
    measures = {
        f"{way} R@{k}": 100 * (counts < k).double().mean().item()
        for way, counts in ahead.items()
        for k in RECALL_RANKS
    }
    return measures | {"rSum": sum(measures.values())}


def five_fold(similarity: Tensor, image_of: Tensor, folds: int = 5) -> dict[str, float]:
    """COCO's 1K protocol: means of `retrieval` over `folds` consecutive equal parts of the images with their captions.
    similarity (images, captions), image_of (captions,); `folds` divides the number of images."""
    results = []
    for images, captions in split_folds(image_of, folds):
        fold = similarity[images][:, captions]
        results.append(retrieval(fold, image_of[captions] - images.start))
    return {name: sum(fold[name] for fold in results) / folds for name in results[0]}


def split_folds(image_of: Tensor, folds: int) -> Iterator[tuple[slice, Tensor]]:
    """The rows of the images and the indices of the captions of each of `folds` equal parts."""
    size = (int(image_of.max()) + 1) // folds
    for fold in range(folds):
        yield slice(fold * size, (fold + 1) * size), (image_of // size == fold).nonzero().flatten()


@dataclass(frozen=True)
class RetrievalData:
    """A split to evaluate."""

    loader: DataLoader  # of the images
    tokens: Tokens
    image_of: Tensor  # (captions,): the index of each caption's image
    folds: int
    batch: int  # texts encoded, and captions compared, at a time


def read_caption_splits(
    cfg: CfgNode, names: Sequence[str] = ("train", "dev", "test")
) -> dict[str, ImageTexts]:
    """Read the splits of DATASETS.NAMES."""
    data, root = cfg.DATASETS, Path(cfg.DATASETS.ROOT_DIR)
    return {name: read_image_texts(root, data.NAMES, name, data.LONG_CAPTIONS) for name in names}


def caption_warnings(splits: Mapping[str, ImageTexts]) -> list[str]:
    """Warnings about data that are probably a mistake, though training and evaluation can go on."""
    return [
        f"WARNING: {len(paths)} images are in training and {name}, the first {min(paths)}, so the figures are not those of "
        "unseen ones; leave them out of one."
        for name in ("dev", "test")
        if (paths := {*splits["train"].paths} & {*splits[name].paths})
    ]


def check_folds(split: ImageTexts, folds: int) -> None:
    """Raise `UserError` where `folds` does not divide the number of images of a split."""
    if len(split.paths) % folds:
        raise UserError(
            f"TEST.FOLDS is {folds}, which does not divide the split's {len(split.paths)} images; choose one that does."
        )


def check_captions(cfg: CfgNode, decode: bool) -> dict[str, Any]:
    """Read the images and captions of all splits as training does, and decode the images where `decode` asks for it. → What
    `demo_sdtps.reports.data.check_triplets` returns; the expected counts are not known."""
    splits = read_caption_splits(cfg)
    batch, seed = cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.SEED
    shuffled_batches(len(splits["train"].captions), "captions", batch, seed)
    check_folds(splits["test"], cfg.TEST.FOLDS)
    if decode:
        verify(path for split in splits.values() for path in split.paths)
    counts = {
        name: {
            "images": len(split.paths),
            "captions": len(split.captions),
            "long": len(split.long_captions or ()),
        }
        for name, split in splits.items()
    }
    unknown: dict[str, Any] = {"expected": {}, "differences": [], "complete": []}
    return {"counts": counts, "warnings": caption_warnings(splits), **unknown}


def make_retrieval_data(
    cfg: CfgNode, split: ImageTexts, tokens: Tokens, folds: int = 1
) -> RetrievalData:
    """A split and its tokens for evaluation."""
    check_folds(split, folds)
    loader, image_of = image_loader(cfg, split), torch.tensor(split.image_of)
    return RetrievalData(loader, tokens, image_of, folds, cfg.TEST.IMS_PER_BATCH)


def load_seps_and_data(cfg: CfgNode) -> tuple[SEPS, RetrievalData]:
    """The model of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device, and the data of TEST.SPLIT. The
    data set may differ from the one of training. Only the tokenizer and the configuration of MODEL.TEXT_TOWER are read, not its
    weights."""
    device = prepare_evaluation(cfg)
    weights = read_weights(cfg.TEST.WEIGHT)
    split = read_caption_splits(cfg, (cfg.TEST.SPLIT,))[cfg.TEST.SPLIT]
    tokens = encode_captions(cfg, split, load_tokenizer(cfg))
    model, _ = make_seps(cfg, pretrained=False)
    fill_model(model, weights, cfg.TEST.WEIGHT)
    return model.eval().to(device), make_retrieval_data(cfg, split, tokens, cfg.TEST.FOLDS)


def evaluate_retrieval(model: SEPS, data: RetrievalData) -> dict[str, float]:
    """R@1, R@5, R@10 in both directions and their sum in percent, means over folds."""
    return five_fold(similarities(model, data), data.image_of, data.folds)


def similarities(model: SEPS, data: RetrievalData) -> Tensor:
    """Similarities (images, captions) float32 on the CPU; those across folds are not computed and stay 0."""
    device = next(model.parameters()).device
    with evaluating(model):
        batches = progress(image_batches(data.loader), "encoding images", len(data.loader))
        images = torch.cat([model.image_tower(to_device(batch, device)) for batch in batches])
        words = _encode_texts(model, data.tokens.captions, data.batch)
        long_words = _encode_texts(model, data.tokens.long_captions or [], data.batch)
        check_features("The tokens of images and captions", [images, *words, *long_words])
        matrix = torch.zeros(len(images), len(words))
        blocks = [
            (rows, block)
            for rows, captions in split_folds(data.image_of, data.folds)
            for block in _blocks(captions.tolist(), words, data.batch)
        ]
        for rows, block in progress(blocks, "comparing"):
            texts = [*pad_texts([words[caption] for caption in block])]
            if long_words:
                texts += pad_texts([long_words[data.image_of[caption]] for caption in block])
            matrix[rows, block] = model.network(images[rows], *texts).float().cpu()
    check_finite("The similarities", [matrix])
    return matrix


def _encode_texts(model: SEPS, texts: list[list[int]], batch: int) -> list[Tensor]:
    """Word vectors (L, C) of each text, without padding, on the model's device."""
    device = next(model.parameters()).device
    vectors = [torch.empty(0)] * len(texts)
    blocks = _blocks(range(len(texts)), texts, batch)
    for block in progress(blocks, "encoding captions"):
        words, lengths = pad_texts([texts[index] for index in block])
        padded = model.text_tower(to_device(words, device), lengths)
        for index, length, vector in zip(block, lengths, padded, strict=True):
            vectors[index] = vector[:length]
    return vectors


def _blocks(indices: Sequence[int], texts: Sequence, size: int) -> list[list[int]]:
    """Blocks of at most `size` indices, sorted by the texts' lengths to reduce padding."""
    ordered = sorted(indices, key=lambda index: len(texts[index]))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
