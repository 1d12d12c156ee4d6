"""Training and evaluation of SEPS (docs/seps.md). In evaluation each image and each caption is encoded once, then all pairs are
compared."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor
from yacs.config import CfgNode

from demo_sdtps.datasets.loaders import collated_batches
from demo_sdtps.evaluation.protocol import prepare_evaluation
from demo_sdtps.evaluation.tables import percent_table
from demo_sdtps.modeling.checkpoints.loading import fill_model, read_weights
from demo_sdtps.modeling.precision import check_features, check_finite, evaluating
from demo_sdtps.runtime.device import set_seed
from demo_sdtps.runtime.gpu import to_device
from demo_sdtps.runtime.progress import progress
from demo_sdtps.training.loop import Loss, fit
from demo_sdtps.training.run import Evaluation, digest_lines, file_lines, open_run
from seps.captions import (
    CaptionBatch,
    ImageTexts,
    caption_batches,
    caption_loader,
    encode_captions,
    image_loader,
    pad_texts,
    read_caption_splits,
)
from seps.model import SEPS, load_tokenizer, make_seps
from seps.network import SEPSLoss
from seps.schema import SEPS_SCHEMA

RECALL_RANKS = (1, 5, 10)


def train(cfg: CfgNode, overwrite: bool = False) -> None:
    """Train SEPS by a configuration of SEPS_SCHEMA. A run in OUTPUT_DIR is replaced with `overwrite`, and continued by
    RESUME."""
    with open_run(cfg, overwrite, SEPS_SCHEMA) as run:
        if run.is_finished:
            return
        texts, tokenizer, solver = read_caption_splits(cfg), load_tokenizer(cfg), cfg.SOLVER
        set_seed(solver.SEED)
        model, origin = make_seps(cfg, pretrained=run.state is None)
        splits = {name: encode_captions(cfg, split, tokenizer) for name, split in texts.items()}
        folds = {"dev": 1, "test": cfg.TEST.FOLDS}
        data = {name: RetrievalData(cfg, splits[name], folds[name]) for name in folds}
        loader = caption_loader(cfg, splits["train"])
        loss = BatchLoss(cfg, model.to(run.device))
        optimizer = torch.optim.AdamW(
            model.parameters(), solver.BASE_LR, weight_decay=solver.WEIGHT_DECAY, fused=True
        )

        def begin_epoch(epoch: int) -> None:
            reached = sum(step < epoch for step in solver.STEPS)
            for group in optimizer.param_groups:
                group["lr"] = solver.BASE_LR * solver.GAMMA**reached
            # All negatives count in the first epochs, then the hardest alone.
            loss.losses.set_max_violation(epoch > solver.ALL_NEGATIVES_EPOCHS)

        lines = []  # files of the images, and tokens of the captions
        for split in splits.values():
            lines += file_lines(cfg.DATASETS.ROOT_DIR, split.paths)
            lines.append(repr((split.image_of, split.captions, split.long_captions)))
        kind = "with" if splits["train"].long_captions else "without"
        notes = [f"{cfg.DATASETS.NAMES}, {kind} long captions", *origin.splitlines()]
        run.begin(model, [optimizer], digest_lines(lines), notes)
        fit(run, loader, loss, begin_epoch, partial(evaluate, cfg, model, data), caption_batches)


class BatchLoss:
    """The loss of a batch of captions, with its alignment and ratio."""

    def __init__(self, cfg: CfgNode, model: SEPS):
        names = ("margin", "target_ratio", "ratio_weight", "lambda_sparse", "lambda_dense")
        self.losses = SEPSLoss(**{name: cfg.SOLVER[name.upper()] for name in names})
        self.model = model

    def __call__(self, batch: CaptionBatch) -> Loss:
        similarities, masks = self.model(batch.images, *chain(*batch.texts))
        loss, align, ratio = self.losses(similarities.float(), masks, batch.image_ids)
        count = len(similarities)
        return Loss(loss, count, {"align": align.detach() * count, "ratio": ratio.detach() * count})


class RetrievalData:
    """A split of tokens to evaluate in `folds` parts, with the loader of its images."""

    def __init__(self, cfg: CfgNode, split: ImageTexts, folds: int = 1):
        self.loader, self.split, self.folds = image_loader(cfg, split), split, folds
        self.batch = cfg.TEST.IMS_PER_BATCH  # texts encoded, and captions compared, at a time


def evaluate(
    cfg: CfgNode, model: SEPS, data: Mapping[str, RetrievalData], epoch: int
) -> Evaluation:
    """The evaluation after an epoch on the dev split, whose rSum is the score, and after the last one on the test split too."""
    names = ("dev", "test") if epoch == cfg.SOLVER.MAX_EPOCHS else ("dev",)
    metrics = {name: evaluate_retrieval(model, data[name]) for name in names}
    scalars = {f"{name}/{key}": value for name in names for key, value in metrics[name].items()}
    return Evaluation(metrics, metrics["dev"]["rSum"], scalars, percent_table(metrics, scale=1))


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
    similarity (images, captions), image_of (captions,). What remains of the images is left out."""
    size, results = len(similarity) // folds, []
    for fold in range(folds):
        captions = (image_of // size == fold).nonzero().flatten()
        part = similarity[fold * size : (fold + 1) * size, captions]
        results.append(retrieval(part, image_of[captions] - fold * size))
    return {name: sum(result[name] for result in results) / folds for name in results[0]}


def load_seps_and_data(cfg: CfgNode) -> tuple[SEPS, RetrievalData]:
    """The model of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device, and the data of TEST.SPLIT. The
    data set may differ from the one of training. Only the tokenizer and the configuration of MODEL.TEXT_TOWER are read, not its
    weights."""
    device = prepare_evaluation(cfg)
    weights = read_weights(cfg.TEST.WEIGHT)
    (split,) = read_caption_splits(cfg, (cfg.TEST.SPLIT,)).values()
    data = RetrievalData(cfg, encode_captions(cfg, split, load_tokenizer(cfg)), cfg.TEST.FOLDS)
    model, _ = make_seps(cfg, pretrained=False)
    fill_model(model, weights, cfg.TEST.WEIGHT)
    return model.eval().to(device), data


def evaluate_retrieval(model: SEPS, data: RetrievalData) -> dict[str, float]:
    """R@1, R@5, R@10 in both directions and their sum in percent, means over folds."""
    return five_fold(similarities(model, data), torch.tensor(data.split.image_of), data.folds)


def similarities(model: SEPS, data: RetrievalData) -> Tensor:
    """Similarities (images, captions) float32 on the CPU."""
    device, split = next(model.parameters()).device, data.split
    with evaluating(model):
        batches = progress(collated_batches(data.loader), "encoding images", len(data.loader))
        images = torch.cat([model.image_tower(to_device(one, device)) for ((one,),) in batches])
        words = _encode_texts(model, split.captions, data.batch)
        long_words = _encode_texts(model, split.long_captions or [], data.batch)
        check_features("The tokens of images and captions", [images, *words, *long_words])
        matrix = torch.zeros(len(images), len(words))
        for block in progress(_blocks(words, data.batch), "comparing"):
            texts = [*pad_texts(words[caption] for caption in block)]
            if long_words:
                texts += pad_texts(long_words[split.image_of[caption]] for caption in block)
            matrix[:, block] = model.network(images, *texts).float().cpu()
    check_finite("The similarities", [matrix])
    return matrix


def _encode_texts(model: SEPS, texts: Sequence[list[int]], batch: int) -> list[Tensor]:
    """Word vectors (L, C) of each text, without padding, on the model's device."""
    device = next(model.parameters()).device
    vectors = [torch.empty(0)] * len(texts)
    for block in progress(_blocks(texts, batch), "encoding captions"):
        words, lengths = pad_texts(texts[index] for index in block)
        padded = model.text_tower(to_device(words, device), lengths)
        for index, length, vector in zip(block, lengths, padded, strict=True):
            vectors[index] = vector[:length]
    return vectors


def _blocks(texts: Sequence, size: int) -> list[list[int]]:
    """Indices of texts in blocks of at most `size`, sorted by length to reduce padding."""
    ordered = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
