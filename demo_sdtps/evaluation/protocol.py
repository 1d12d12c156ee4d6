"""The field's protocol of evaluation: query and gallery, and the ranking of each return pattern, or of any set of modalities
against any (docs/method.md)."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, product

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.datasets import Sample, check_labelled, find_reader
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.distances import (
    Distances,
    Side,
    check_finite,
    describe_incomparable,
    find_incomparable,
    make_comparison,
    matrix_distances,
    measure_distances,
    present_modalities,
)
from demo_sdtps.evaluation.extraction import (
    CASES,
    Model,
    extract_features,
    missing_cases,
    model_device,
)
from demo_sdtps.evaluation.metrics import Labels, Ranking, score_distances
from demo_sdtps.evaluation.reranking import rerank
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.runtime.distributed import broadcast_from_main, shard_for_rank

CrossModal = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""mAP and Rank-1, in [0, 1], by the set of the query and that of the gallery (`modality_sets`); None where undefined."""


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
    key: str  # attribute by which the protocol leaves out gallery samples of the query's identity
    labels: tuple[Labels, Labels]  # of the queries and of the gallery


def make_test_data(cfg: CfgNode, query: Sequence[Sample], gallery: Sequence[Sample]) -> TestData:
    """The distinct samples of query and gallery; in some data sets both have the same images."""
    matched, key = count_matched(cfg, query, gallery), exclude_key(cfg)
    index = {sample: number for number, sample in enumerate(dict.fromkeys([*query, *gallery]))}
    samples = list(index)
    rows = [np.array([index[sample] for sample in side]) for side in (query, gallery)]
    names = ("identity", "camera", key)
    labels = Labels(*(np.array([getattr(each, name) for each in samples]) for name in names))
    return TestData(
        samples,
        torch.from_numpy(rows[0]),
        torch.from_numpy(rows[1]),
        test_loader(cfg, shard_for_rank(samples)),
        matched,
        present_modalities(samples, cfg.MODEL.MODALITIES),
        key,
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
    sides = (
        present_modalities(splits[name], cfg.MODEL.MODALITIES) for name in ("query", "gallery")
    )
    if text := describe_incomparable(make_comparison(cfg, 1), *sides):
        warnings.append(f"WARNING: {text}, otherwise their matches rank last.")
    if cfg.MODEL.SLIM_BLOCKS and cfg.MODEL.SLIM_SHARED and not cfg.INPUT.JOINT_AUGMENTATION:
        warnings.append(
            "WARNING: MODEL.SLIM_SHARED keeps the same positions of the three modalities, but they are flipped and "
            "cropped apart, so that a place is not the same in each; set INPUT.JOINT_AUGMENTATION to True."
        )
    return warnings


def exclude_key(cfg: CfgNode) -> str:
    """Attribute by which the protocol excludes gallery samples of the query's identity: camera or scene (docs/method.md)."""
    return "scene" if find_reader(cfg).by_scene else "camera"


def evaluate_reid(cfg: CfgNode, model: Model, data: TestData) -> dict[str, dict[int, Ranking]]:
    """Rankings by case of TEST.MISS (several for `all`) and return pattern. Images that TEST.MISS replaces by zeros count as
    present: as published, all columns are compared."""
    if cfg.TEST.MISS == "all":  # of two modalities no case leaves nothing at all
        cases = missing_cases(
            [*compress(MODALITIES, np.asarray(data.present.any(axis=0)).tolist())]
        )
    else:
        cases = {cfg.TEST.MISS: missing_modalities(cfg.TEST.MISS)}
    features = extract_cases(cfg, model, data, cases)
    device = model_device(model)
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
    missing, samples = list(cases.values()), len(data.samples)
    features = extract_features(cfg, model, data.loader, missing, samples)
    return dict(zip(cases, features, strict=True))


def rank_features(
    cfg: CfgNode, features: torch.Tensor, data: TestData, pattern: int | None = None
) -> Ranking:
    """Score features (samples, D) of the test data, of a return pattern (by default TEST.RETURN_PATTERN), re-ranked where
    TEST.RE_RANKING is yes."""
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
    """Query or gallery, the `rows` of features (samples, D): normalised, and what is present in them, which are of images
    without the `missing` modalities."""
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
        if len(find_incomparable(comparison, query[1], gallery[1])) < len(data.query):
            ranking = score_distances(measure_distances(comparison, query, gallery), *data.labels)
            cell = [ranking.mAP, ranking.rank(1)]
        for rows, value in zip(scores.values(), cell, strict=True):
            rows.setdefault(one, {})[other] = value
    return scores
