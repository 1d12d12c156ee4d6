"""Model, data and features of an evaluation: one pass of the network for any cases of missing modalities (docs/method.md)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MISSING_CASES, MODALITIES, UserError
from demo_sdtps.datasets import Sample, check_trained_on, read_splits
from demo_sdtps.datasets.loaders import Batch, batches
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.demo import DeMo, EncodedTriplets, make_model, missing_modalities
from demo_sdtps.modeling.exported import ExportedModel, is_exported
from demo_sdtps.modeling.modalities import ByModality
from demo_sdtps.modeling.precision import check_features, compile_model, inference
from demo_sdtps.runtime.device import choose_device, choose_precision, set_seed
from demo_sdtps.runtime.distributed import all_gather_rows, check_equal
from demo_sdtps.runtime.gpu import Recording, can_record, on_cpu
from demo_sdtps.runtime.progress import progress

Model = DeMo | ExportedModel
CASES = {name: missing_modalities(name) for name in ("nothing", *MISSING_CASES)}
"""Complete triplets and every case of missing modalities: the missing modalities by the case's name."""
Decoded = list[list[np.ndarray | None]]
"""Triplets of images uint8 (3, H, W), None for a missing one."""


def prepare_evaluation(cfg: CfgNode) -> torch.device:
    """Seed the random generators → the device."""
    if not cfg.TEST.WEIGHT:
        raise UserError(
            "No weights to evaluate: give TEST.WEIGHT (or --weight) a checkpoint, as last.pth or best.pth of a run."
        )
    set_seed(cfg.SOLVER.SEED)
    return choose_device(cfg)


def load_model_and_data(
    cfg: CfgNode, splits: Sequence[str] = ("query", "gallery")
) -> tuple[DeMo, dict[str, list[Sample]]]:
    """The model of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device, and the samples by split. The
    numbers of identities and cameras come from the checkpoint, so the training split is not read."""
    device = prepare_evaluation(cfg)
    checkpoint = read_checkpoint(cfg.TEST.WEIGHT)
    check_trained_on(cfg, checkpoint.origin.get("dataset"), checkpoint.path)
    model = make_model(cfg, checkpoint.num_class, checkpoint.camera_num)
    load_weights(model, checkpoint, cfg)
    result = _read_samples(cfg, splits, model.backbone.cameras, checkpoint.path)
    model = model.eval().to(device)
    if cfg.MODEL.COMPILE:
        compile_model(model, device)
    return model, result


def load_any_model_and_data(
    cfg: CfgNode, splits: Sequence[str] = ("query", "gallery")
) -> tuple[Model, dict[str, list[Sample]]]:
    """`load_model_and_data`, also of an exported file."""
    if not is_exported(cfg.TEST.WEIGHT):
        return load_model_and_data(cfg, splits)
    prepare_evaluation(cfg)
    model = ExportedModel(cfg.TEST.WEIGHT, cfg.TEST.AMP)
    model.check_settings(cfg)
    check_trained_on(cfg, model.about["origin"].get("dataset"), model.path)
    return model, _read_samples(cfg, splits, model.cameras, model.path)


def _read_samples(
    cfg: CfgNode, splits: Sequence[str], known: int, path: Path
) -> dict[str, list[Sample]]:
    """The samples by split, whose cameras the weights `path` know, but for those with `known` 0, which have no embedding."""
    result = read_splits(cfg, splits)
    check_equal(result, "samples")
    cameras = 1 + max(sample.camera for samples in result.values() for sample in samples)
    if known and cameras > known:
        raise UserError(
            f"The weights {path} know {known} cameras, but "
            f"{cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} has {cameras}; use weights trained on this data."
        )
    return result


def extract_patterns(
    model: DeMo,
    images: ByModality,
    cam_label: torch.Tensor,
    cases: Sequence[frozenset[str]] = (frozenset(),),
    neck: str = "before",
) -> list[dict[int, torch.Tensor]]:
    """Return patterns in each case of missing modalities, whose images count as zeros: 1 original (B, 3C), 2 enhanced, 3
    both, of which the others are views. `neck`: "before" or "after" the BatchNorm of each head."""
    encoded = encode_cases(model, images, cam_label, cases)
    return [model.return_patterns(one, neck) for one in encoded]


def encode_cases(
    model: DeMo, images: ByModality, cam_label: torch.Tensor, cases: Sequence[frozenset[str]]
) -> list[EncodedTriplets]:
    """`DeMo.forward_features` in several cases of missing modalities, whose images count as zeros. Every image passes through
    the backbone once, whatever the number of cases, and a zero image once per camera: nothing before SDTPS and HDM mixes
    modalities. Slimming does, so that the blocks after its first run for each case. `cam_label` may be on the CPU where the
    images are on a GPU, which then is not waited for."""
    device = next(iter(images.values())).device
    absent = frozenset[str]().union(*cases)
    present = {
        name: image for name, image in images.items() if any(name not in case for case in cases)
    }

    def encode(some: ByModality, cameras: torch.Tensor) -> EncodedTriplets:
        """What becomes of images before anything mixes modalities."""
        if model.slimming:
            return EncodedTriplets(model.forward_stem(some, cameras), {}, {})
        return model.forward_features(some, cameras)

    whole = zeros = encode(present, cam_label.to(device, non_blocking=True))
    if absent:
        cameras, place = (
            each.to(device, non_blocking=True) for each in cam_label.unique(return_inverse=True)
        )
        black = {
            name: torch.zeros_like(image[: len(cameras)])
            for name, image in images.items()
            if name in absent
        }
        zeros = encode(black, cameras)
    encoded = []
    for case in cases:
        fields: dict[str, Any] = {
            field: {
                name: rows[name][place] if name in case else rows[name]
                for name in MODALITIES
                if name in (rows := getattr(zeros if name in case else whole, field))
            }
            for field in ("tokens", "global_feats", "missing")
        }
        if model.slimming:
            black = {name: torch.zeros_like(images[name]) for name in images if name in case}
            encoded.append(model.forward_stages(fields["tokens"], images | black))
        else:
            encoded.append(whole._replace(**fields))
    return encoded


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
    """Features of the loader's samples in each of the cases, by return pattern: (samples, D) float32 on the CPU. `cases` are
    sets of missing modalities, by default that of TEST.MISS; the backbone sees every image once whatever their number.
    TEST.NECK_FEAT and TEST.AMP apply. Patterns 1 and 2 are views of pattern 3. With `total` the loader has this process's part
    of so many samples, and the features are those of all of them."""
    if cases is None:
        cases = [missing_modalities(cfg.TEST.MISS)]
    if isinstance(model, ExportedModel):
        columns, batches_of_cases = model.columns, _exported_features(model, loader, cases)
    else:
        columns = model.layout.columns
        batches_of_cases = _model_features(cfg, model, loader, cases)
    features, by_case = [], [[*blocks] for blocks in zip(*batches_of_cases, strict=True)]
    for blocks in by_case:
        rows = torch.cat(blocks)
        blocks.clear()  # seven cases of a large data set take gigabytes
        features.append(rows if total is None else all_gather_rows(rows, total))
    check_features("The network's features", features)
    return [{pattern: whole[:, each] for pattern, each in columns.items()} for whole in features]


def _model_features(
    cfg: CfgNode, model: DeMo, loader: DataLoader, cases: Sequence[frozenset[str]]
) -> Iterator[list[torch.Tensor]]:
    """Pattern 3 of each batch in each case, on the CPU."""
    device, neck = model_device(model), cfg.TEST.NECK_FEAT

    def forward(batch: Batch) -> list[torch.Tensor]:
        return [model(batch.images, batch.cameras, neck=neck)]

    forward_whole = Recording(forward) if can_record(cfg, device) else forward

    def on_device() -> Iterator[list[torch.Tensor]]:
        for batch in progress(batches(loader), "extracting features", len(loader), unit="batch"):
            moved = batch.to(device)
            # As large as most, of complete triplets alone: what is compiled, and recorded as a CUDA graph.
            if not any(cases) and len(batch.labels) == loader.batch_size:
                yield forward_whole(moved)
                continue
            # The cameras stay on the CPU, where the model can list those of the batch without waiting for the device.
            patterns = extract_patterns(model, moved.images, batch.cameras, cases, neck)
            yield [of_case[3] for of_case in patterns]

    with inference(model, choose_precision(cfg.TEST.AMP, device)):
        yield from on_cpu(on_device())


def decoded_triplets(loader: DataLoader) -> Iterator[tuple[Decoded, list[int]]]:
    """The batches of a loader as they are decoded, and their cameras."""
    dataset: Any = loader.dataset
    starts = range(0, len(dataset), loader.batch_size or 1)
    for start in progress(starts, "extracting features", unit="batch"):
        rows = range(start, min(start + starts.step, len(dataset)))
        triplets = [
            [None if image is None else image.numpy() for image in dataset.decoded(row)]
            for row in rows
        ]
        yield triplets, [dataset.targets[row][1] for row in rows]


def _exported_features(
    model: ExportedModel, loader: DataLoader, cases: Sequence[frozenset[str]]
) -> Iterator[list[torch.Tensor]]:
    """The file's output for each batch in each case."""
    for triplets, cameras in decoded_triplets(loader):
        blocks = []
        for case in cases:
            present = [
                [
                    None if name in case else image
                    for name, image in zip(model.modalities, triplet, strict=True)
                ]
                for triplet in triplets
            ]
            blocks.append(torch.from_numpy(model.features(present, cameras)))
        yield blocks
