"""Feature extraction: one pass of the network over a loader, for any cases of missing modalities (docs/method.md)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MISSING_CASES
from demo_sdtps.datasets.loaders import Batch, batches
from demo_sdtps.evaluation.missing import extract_patterns
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.exported import ExportedModel
from demo_sdtps.modeling.inference import check_features, inference
from demo_sdtps.runtime.device import choose_precision
from demo_sdtps.runtime.distributed import all_gather_rows
from demo_sdtps.runtime.graphs import Recording, can_record
from demo_sdtps.runtime.progress import progress
from demo_sdtps.runtime.transfer import on_cpu

Model = DeMo | ExportedModel

CASES = {name: missing_modalities(name) for name in ("nothing", *MISSING_CASES)}
"""Complete triplets and every case of missing modalities: the missing modalities by the case's name."""


def missing_cases(modalities: Sequence[str]) -> dict[str, frozenset[str]]:
    """Those of CASES that leave some of `modalities` and miss none that is not among them."""
    return {name: missing for name, missing in CASES.items() if missing < set(modalities)}


def model_device(model: Model) -> torch.device:
    """Where a model computes."""
    return next(model.parameters()).device if isinstance(model, DeMo) else torch.device("cpu")


def extract_features(
    cfg: CfgNode,
    model: Model,
    loader: DataLoader,
    cases: Sequence[frozenset[str]] | None = None,
    total: int | None = None,
) -> list[dict[int, torch.Tensor]]:
    """Features of the loader's samples in each of the cases, by return pattern: (samples, D) float32 on the CPU.

    `cases` are sets of missing modalities, by default that of TEST.MISS; the backbone sees every image once whatever their
    number. TEST.NECK_FEAT and TEST.AMP apply. Patterns 1 and 2 are views of pattern 3. With `total` the loader has this
    process's part of so many samples, and the features are those of all of them.
    """
    if cases is None:
        cases = [missing_modalities(cfg.TEST.MISS)]
    if isinstance(model, ExportedModel):
        features = _run_exported(model, loader, cases)
        columns = model.columns
    else:
        features = _run_model(cfg, model, loader, cases)
        columns = model.layout.columns
    # case by case, freeing each shard: seven cases of a large data set take gigabytes
    if total is not None:
        features = [all_gather_rows(features.pop(0), total) for _ in cases]
    check_features("The network's features", features)
    return [{pattern: whole[:, each] for pattern, each in columns.items()} for whole in features]


def _run_model(
    cfg: CfgNode, model: DeMo, loader: DataLoader, cases: Sequence[frozenset[str]]
) -> list[torch.Tensor]:
    """Pattern 3 of the loader's samples in each case."""
    device, neck = model_device(model), cfg.TEST.NECK_FEAT
    shape: Any = len(loader.dataset), model.layout.width  # type: ignore[arg-type]
    features = [torch.empty(shape, dtype=torch.float32) for _ in cases]
    start = 0

    def forward(batch: Batch) -> list[torch.Tensor]:
        return [model(batch.images, batch.cameras, neck=neck)]

    forward_whole = Recording(forward) if can_record(cfg, device) else forward

    def feature_blocks() -> Iterator[list[torch.Tensor]]:
        shown = progress(batches(loader), "extracting features", len(loader), unit="batch")
        for batch in shown:
            on_device = batch.to(device)
            if is_whole(batch, loader, cases):
                yield forward_whole(on_device)
                continue
            # The cameras stay on the CPU, where the model can list those of the batch without waiting for the device.
            patterns = extract_patterns(model, on_device.images, batch.cameras, cases, neck)
            yield [of_case[3] for of_case in patterns]

    with inference(model, choose_precision(cfg.TEST.AMP, device)):
        for blocks in on_cpu(feature_blocks()):
            stop = start + len(blocks[0])
            for whole, block in zip(features, blocks, strict=True):
                whole[start:stop] = block
            start = stop
    return features


def is_whole(batch: Batch, loader: DataLoader, cases: Sequence[frozenset[str]]) -> bool:
    """Whether a batch is as large as most, of complete triplets alone: what is compiled, and recorded as a CUDA graph."""
    return not any(cases) and len(batch.labels) == loader.batch_size


Decoded = list[list[np.ndarray | None]]
"""Triplets of images uint8 (3, H, W), None for a missing one."""


def decoded_triplets(loader: DataLoader) -> Iterator[tuple[Decoded, list[int]]]:
    """The batches of a loader as they are decoded, and their cameras."""
    dataset: Any = loader.dataset
    starts = range(0, len(dataset), loader.batch_size or 1)
    for start in progress(starts, "extracting features", unit="batch"):
        rows = range(start, min(start + starts.step, len(dataset)))
        triplets = [
            [None if image is None else image.numpy() for image in dataset.decoded(row)[0]]
            for row in rows
        ]
        yield triplets, [dataset.targets[row][1] for row in rows]


def _run_exported(
    model: ExportedModel, loader: DataLoader, cases: Sequence[frozenset[str]]
) -> list[torch.Tensor]:
    """The file's output for the loader's samples in each case."""
    features: list[list[torch.Tensor]] = [[] for _ in cases]
    for triplets, cameras in decoded_triplets(loader):
        for blocks, case in zip(features, cases, strict=True):
            present = [
                [
                    None if name in case else image
                    for name, image in zip(model.modalities, triplet, strict=True)
                ]
                for triplet in triplets
            ]
            blocks.append(torch.from_numpy(model.features(present, cameras)))
    return [torch.cat(blocks) for blocks in features]
