"""Feature extraction: one pass of the network over a loader, for any cases of missing modalities (docs/method.md)."""

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MISSING_CASES
from demo_sdtps.datasets.loaders import batches
from demo_sdtps.evaluation.missing import extract_patterns
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.inference import check_features, inference
from demo_sdtps.runtime.device import choose_precision
from demo_sdtps.runtime.distributed import all_gather_rows
from demo_sdtps.runtime.progress import progress
from demo_sdtps.runtime.transfer import on_cpu, to_device

CASES = {name: missing_modalities(name) for name in ("nothing", *MISSING_CASES)}
"""Complete triplets and every case of missing modalities: the missing modalities by the case's name."""


def cases_of(modalities: Sequence[str]) -> dict[str, frozenset[str]]:
    """Those of CASES that leave some of `modalities` and miss none that is not among them."""
    return {name: missing for name, missing in CASES.items() if missing < set(modalities)}


def extract_features(
    cfg: CfgNode,
    model: DeMo,
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
    device = next(model.parameters()).device
    features = [torch.empty(len(loader.dataset), model.layout.width) for _ in cases]  # type: ignore[arg-type]
    start = 0

    def feature_blocks() -> Iterator[list[torch.Tensor]]:
        shown = progress(batches(loader), "extracting features", len(loader), unit="batch")
        for images, _, cameras in shown:
            images = {modality: to_device(image, device) for modality, image in images.items()}
            # The cameras stay on the CPU, where the model can list those of the batch without waiting for the device.
            patterns = extract_patterns(model, images, cameras, cases, cfg.TEST.NECK_FEAT)
            yield [of_case[3] for of_case in patterns]

    with inference(model, choose_precision(cfg.TEST.AMP, device)):
        for blocks in on_cpu(feature_blocks()):
            stop = start + len(blocks[0])
            for whole, block in zip(features, blocks, strict=True):
                whole[start:stop] = block
            start = stop
    # case by case, freeing each shard: seven cases of a large data set take gigabytes
    if total is not None:
        features = [all_gather_rows(features.pop(0), total) for _ in cases]
    check_features("The network's features", features)
    return [model.layout.split(whole) for whole in features]
