"""The field's protocol of evaluation, from a checkpoint to scores: model, data, features by one pass of the network for any
cases of missing modalities, and the ranking of each return pattern, or of any set of modalities against any."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product, starmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import MISSING_CASES
from demo_sdtps.datasets import OWN_READERS, Sample, check_labelled, find_reader, read_splits
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.loaders import Batch, batches, test_loader
from demo_sdtps.datasets.published import MARKER
from demo_sdtps.evaluation.distances import (
    Distances,
    Side,
    check_finite,
    make_comparison,
    matrix_distances,
    measure_distances,
    names_present,
    present_modalities,
    rerank,
)
from demo_sdtps.evaluation.metrics import Labels, Ranking, score_distances
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.demo import DeMo, EncodedTriplets, make_model, missing_modalities
from demo_sdtps.modeling.exported import ExportedModel, is_exported
from demo_sdtps.modeling.modalities import ByModality
from demo_sdtps.modeling.precision import check_features, compile_model, inference
from demo_sdtps.runtime.device import choose_device, choose_precision, set_seed
from demo_sdtps.runtime.distributed import (
    all_gather_rows,
    broadcast_from_main,
    check_equal,
    shard_for_rank,
)
from demo_sdtps.runtime.gpu import Recording, can_record, on_cpu
from demo_sdtps.runtime.progress import progress

logger = logging.getLogger(__name__)
Model = DeMo | ExportedModel
CASES = {name: missing_modalities(name) for name in ("nothing", *MISSING_CASES)}
"""Complete triplets and every case of missing modalities: the missing modalities by the case's name."""
CrossModal = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""mAP and Rank-1, in [0, 1], by the set of the query and that of the gallery (`modality_sets`); None where undefined."""


def prepare_evaluation(cfg: CfgNode) -> torch.device:
    """Seed the random generators → the device."""
    if not cfg.TEST.WEIGHT:
        raise UserError(
            "No weights to evaluate: give TEST.WEIGHT (or --weight) a checkpoint, as last.pth or best.pth of a run."
        )
    set_seed(cfg.SOLVER.SEED)
    return choose_device(cfg)


def load_model_and_data(
    cfg: CfgNode, splits: Sequence[str] = ("query", "gallery"), exported: bool = False
) -> tuple[Any, dict[str, list[Sample]]]:
    """The `DeMo` of `cfg` with the weights of TEST.WEIGHT, in evaluation mode on its device, or, with `exported`, also an
    `ExportedModel`; and the samples by split. The numbers of identities and cameras come from the weights, so the training
    split is not read. Raises `UserError` for weights that do not fit, and for cameras that they do not know."""
    device = prepare_evaluation(cfg)
    if exported and is_exported(cfg.TEST.WEIGHT):
        model: Any = ExportedModel(cfg.TEST.WEIGHT, cfg.TEST.AMP)
        model.check_settings(cfg)
        path, known, origin = model.path, model.cameras, model.about["origin"]
    else:
        checkpoint = read_checkpoint(cfg.TEST.WEIGHT)
        path, origin = checkpoint.path, checkpoint.origin
        model = make_model(cfg, checkpoint.num_class, checkpoint.camera_num)
        load_weights(model, checkpoint)
        known = model.backbone.cameras
        model = model.eval().to(device)
        if cfg.MODEL.COMPILE:
            compile_model(model, device)
    samples = read_splits(cfg, splits)
    check_equal(samples, "samples")
    if origin.get("cameras") and cfg.DATASETS.NAMES in OWN_READERS:
        return model, by_trained_cameras(cfg, samples, origin["cameras"], known)
    cameras = 1 + max(sample.camera for members in samples.values() for sample in members)
    if known and cameras > known:  # without an embedding any is known
        raise UserError(
            f"The weights {path} know {known} cameras, but "
            f"{cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} has {cameras}; use weights trained on this data."
        )
    return model, samples


def by_trained_cameras(
    cfg: CfgNode, splits: dict[str, list[Sample]], names: Sequence[str], known: int
) -> dict[str, list[Sample]]:
    """Own samples with the numbers of their cameras in a training, by its `names`, "" for one without an image there. Others
    get numbers from `known` on, for which the model takes the mean of its `known` cameras, with a warning."""
    if not known or cfg.DATASETS.NAMES not in OWN_READERS:
        return splits
    numbers = {name: number for number, name in enumerate(names) if name}
    in_files = {sample.camera_name for members in splits.values() for sample in members} - {""}
    if others := sorted(in_files - numbers.keys()):
        text = "Cameras that the model was not trained on, so that the mean of its own is taken: %s"
        logger.warning(text, ", ".join(others))
    numbers |= {name: number for number, name in enumerate(others, known)} | {"": UNKNOWN}
    return {
        split: [replace(sample, camera=numbers[sample.camera_name]) for sample in members]
        for split, members in splits.items()
    }


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
    cases = [missing_modalities(cfg.TEST.MISS)] if cases is None else cases
    columns: Mapping[int, slice]
    outputs: Iterator[list[torch.Tensor]]  # of each batch in each case
    if isinstance(model, ExportedModel):
        columns, outputs = model.columns, _exported_features(model, loader, cases)
    else:
        columns, outputs = model.layout.columns, _model_features(cfg, model, loader, cases)
    features, by_case = [], [[*blocks] for blocks in zip(*outputs, strict=True)]
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


def decoded_triplets(
    loader: DataLoader,
) -> Iterator[tuple[list[list[np.ndarray | None]], list[int]]]:
    """The batches of a loader as they are decoded, images uint8 (3, H, W), None for a missing one, and their cameras."""
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
    for batch in decoded_triplets(loader):
        whole, blocks = model.inputs(*batch), []
        for case in cases:
            black = {n: np.zeros_like(each) for n, each in whole.items() if n.upper() in case}
            blocks.append(torch.from_numpy(model.run(whole | black)))
        yield blocks


@dataclass
class TestData:
    """Query and gallery as indices into one list of distinct samples, which the network sees once each."""

    __test__ = False  # not a test, though its name begins like one

    samples: list[Sample]
    query: torch.Tensor
    gallery: torch.Tensor
    loader: DataLoader  # loads this process's shard of the samples
    matched: int  # the number of queries with a match in the gallery; only these are scored
    present: np.ndarray  # (samples, 3) bool: of which modalities the features of each are
    labels: tuple[Labels, Labels]  # of the queries and of the gallery


def make_test_data(cfg: CfgNode, query: Sequence[Sample], gallery: Sequence[Sample]) -> TestData:
    """The distinct samples of query and gallery, which may have the same images. Raises `UserError` for nothing to score."""
    matched = count_matched(cfg, query, gallery)
    index = {sample: number for number, sample in enumerate(dict.fromkeys([*query, *gallery]))}
    samples = list(index)
    rows = [np.array([index[sample] for sample in side]) for side in (query, gallery)]
    names = ("identity", "camera", exclude_key(cfg))
    labels = Labels(*(np.array([getattr(each, name) for each in samples]) for name in names))
    present = present_modalities(samples, cfg.MODEL.MODALITIES)
    there = names_present(np.asarray(present.any(axis=0)))
    if cfg.TEST.MISS != "all" and missing_modalities(cfg.TEST.MISS).issuperset(there):
        raise UserError(
            f"TEST.MISS is {cfg.TEST.MISS!r}, but the data have {', '.join(there)} alone; leave some of these."
        )
    return TestData(
        samples,
        torch.from_numpy(rows[0]),
        torch.from_numpy(rows[1]),
        test_loader(cfg, shard_for_rank(samples)),
        matched,
        present,
        (labels.select(rows[0]), labels.select(rows[1])),
    )


def count_matched(cfg: CfgNode, query: Sequence[Sample], gallery: Sequence[Sample]) -> int:
    """Number of the queries with a match in the gallery. Raises `UserError` for none."""
    check_labelled(cfg)
    key, cameras_of = exclude_key(cfg), defaultdict(set)
    for sample in gallery:
        cameras_of[sample.identity].add(getattr(sample, key))
    matched = sum(1 for sample in query if cameras_of[sample.identity] - {getattr(sample, key)})
    if not matched:
        raise UserError(
            f"No query of {cfg.DATASETS.NAMES} at {cfg.DATASETS.ROOT_DIR} has a match in the gallery (the same "
            f"identity with another {key}), so nothing can be scored; check their labels, of the test "
            "split or of DATASETS.VALIDATION."
        )
    return matched


def data_warnings(cfg: CfgNode, splits: Mapping[str, Sequence[Sample]], matched: int) -> list[str]:
    """Warnings about data, and settings for them, that are probably a mistake, though training and evaluation can go on.
    `splits` are all three, `matched` is the number of queries with a match."""
    warnings = []
    known = {sample.identity for sample in splits["train"]}
    tested = {sample.identity for sample in (*splits["query"], *splits["gallery"])}
    if shared := sorted(known & tested):
        warnings.append(
            f"WARNING: {len(shared)} identities are in training and test, the first {shared[0]}, so the figures are "
            "not those of unseen ones; leave them out of one, or renumber them if they are others."
        )
    if unmatched := len(splits["query"]) - matched:
        warnings.append(
            f"WARNING: {unmatched} of {len(splits['query'])} queries have no match in the gallery (the same identity "
            f"with another {exclude_key(cfg)}) and are not scored (the usual protocol)."
        )
    if all(sample.camera == UNKNOWN for sample in splits["query"]):
        warnings.append(
            "WARNING: the data have no cameras, so matches may be of the query's camera, and MODEL.SIE_CAMERA has no effect."
        )
    if pages := count_pages(sample for samples in splits.values() for sample in samples):
        warnings.append(f"WARNING: {pages}")
    return warnings


def count_pages(samples: Iterable[Sample]) -> str:
    """A line on the further pages of TIFF files and frames of animations, which are not read, "" where there are none."""
    pages = 0
    for path in {path for sample in samples for path in sample.files}:
        if path.lower().endswith((".tif", ".tiff", ".gif", ".webp")):
            with suppress(Exception), Image.open(path, formats=["TIFF", "GIF", "WEBP"]) as image:
                pages += getattr(image, "n_frames", 1) - 1
    return f"{pages} pages or frames of images after the first are not read" if pages else ""


def data_name(cfg: CfgNode) -> str:
    """What the images of a training are, for the model card, whatever data set they are read as."""
    name, root = cfg.DATASETS.NAMES, Path(cfg.DATASETS.ROOT_DIR)
    if (find_reader(cfg).folder_in(root) / MARKER).is_file():
        return "synthetic pedestrians of python -m synthetic"
    return f"own images, {root.resolve().stem}" if name in OWN_READERS else name


def exclude_key(cfg: CfgNode) -> str:
    """Attribute by which the protocol excludes gallery samples of the query's identity: camera or scene (docs/method.md)."""
    return "scene" if find_reader(cfg).by_scene else "camera"


def evaluate_reid(cfg: CfgNode, model: Model, data: TestData) -> dict[str, dict[int, Ranking]]:
    """Rankings by case of TEST.MISS (several for `all`) and return pattern. As published, images that it makes zeros count."""
    if cfg.TEST.MISS == "all":  # of two modalities no case leaves nothing at all
        cases = missing_cases(names_present(np.asarray(data.present.any(axis=0))))
    else:
        cases = {cfg.TEST.MISS: missing_modalities(cfg.TEST.MISS)}
    features, device = extract_cases(cfg, model, data, cases), model_device(model)
    return broadcast_from_main(
        lambda: {
            case: {
                pattern: rank_features(cfg, feature.to(device), data, pattern)
                for pattern, feature in patterns.items()
            }
            for case, patterns in features.items()
        }
    )


def extract_cases(
    cfg: CfgNode, model: Model, data: TestData, cases: Mapping[str, frozenset[str]]
) -> dict[str, dict[int, torch.Tensor]]:
    """Features (samples, D) of the test data, on the CPU, by case of missing modalities and return pattern."""
    features = extract_features(cfg, model, data.loader, [*cases.values()], len(data.samples))
    return dict(zip(cases, features, strict=True))


def rank_features(
    cfg: CfgNode, features: torch.Tensor, data: TestData, pattern: int | None = None
) -> Ranking:
    """Score features (samples, D) of the test data, of a return pattern (TEST.RETURN_PATTERN), by TEST.RE_RANKING."""
    return score_distances(ranked_distances(cfg, features, data, pattern), *data.labels)


def ranked_distances(
    cfg: CfgNode, features: torch.Tensor, data: TestData, pattern: int | None = None
) -> Distances:
    """Distances, as they are ranked, by features (samples, D); arguments are those of `rank_features`."""
    pattern = pattern or cfg.TEST.RETURN_PATTERN
    comparison = make_comparison(cfg, pattern, cfg.TEST.FEAT_NORM == "yes")
    query, gallery = (select_side(cfg, features, data, rows) for rows in (data.query, data.gallery))
    if cfg.TEST.RE_RANKING == "yes":
        return matrix_distances(rerank(replace(comparison, normalise=True), query, gallery))
    return measure_distances(comparison, query, gallery)


def select_side(
    cfg: CfgNode,
    features: torch.Tensor,
    data: TestData,
    rows: torch.Tensor,
    missing: Collection[str] = (),
) -> Side:
    """Query or gallery, the `rows` of features (samples, D): normalised, and what is present without `missing` modalities."""
    present = data.present[rows.numpy()] & [name not in missing for name in MODALITIES]
    return normalise(cfg, features[rows]), present


def normalise(cfg: CfgNode, features: torch.Tensor) -> torch.Tensor:
    """L2-normalised features (n, D) where TEST.FEAT_NORM is yes, else `features`. Raises `NotFiniteError`."""
    check_finite(features)
    return F.normalize(features, dim=1) if cfg.TEST.FEAT_NORM == "yes" else features


def modality_sets(modalities: Sequence[str]) -> dict[str, str]:
    """R, N, T, RN, RT, NT, RNT: the modalities that are present, and the case of `CASES` in which they are."""
    return {
        "".join(modality[0] for modality in modalities if modality not in missing): case
        for case, missing in reversed(missing_cases(modalities).items())
    }


def evaluate_cross_modal(cfg: CfgNode, model: Model, data: TestData) -> CrossModal:
    """`rank_sets` of the test data, from one pass over its images."""
    features = extract_cases(cfg, model, data, missing_cases(model.modalities))
    return broadcast_from_main(lambda: rank_sets(cfg, model, features, data))


def rank_sets(
    cfg: CfgNode, model: Model, features: Mapping[str, Mapping[int, torch.Tensor]], data: TestData
) -> CrossModal:
    """Score every set of modalities of the query against every one of the gallery, without re-ranking. `features` (samples, D)
    by case of `CASES` and return pattern. A triplet is compared by the images that it has of a set's modalities, as everywhere;
    a cell in which no query has any in common with the gallery is undefined."""
    device, pattern = model_device(model), cfg.TEST.RETURN_PATTERN
    comparison = make_comparison(cfg, pattern, cfg.TEST.FEAT_NORM == "yes")
    sides = {
        name: [
            select_side(cfg, features[case][pattern].to(device), data, rows, CASES[case])
            for rows in (data.query, data.gallery)
        ]
        for name, case in modality_sets(model.modalities).items()
    }
    scores: dict[str, dict[str, dict[str, float | None]]] = {"mAP": {}, "Rank-1": {}}
    for (one, (query, _)), (other, (_, gallery)) in product(sides.items(), repeat=2):
        cell: list[float | None] = [None, None]
        sets = product(*(comparison.groups(present) for _, present in (query, gallery)))
        if any(starmap(comparison.is_defined, sets)):
            ranking = score_distances(measure_distances(comparison, query, gallery), *data.labels)
            cell = [ranking.mAP, ranking.rank(1)]
        for rows, value in zip(scores.values(), cell, strict=True):
            rows.setdefault(one, {})[other] = value
    return scores
