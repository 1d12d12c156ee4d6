"""Any modality against any: the sets of modalities of the query against those of the gallery (docs/method.md)."""

from collections.abc import Mapping, Sequence
from itertools import product

import torch
from yacs.config import CfgNode

from demo_sdtps.evaluation.distances import (
    find_incomparable,
    make_comparison,
    measure_in_memory,
)
from demo_sdtps.evaluation.extraction import (
    CASES,
    Model,
    extract_features,
    missing_cases,
    model_device,
)
from demo_sdtps.evaluation.protocol import TestData, rank_distances, select_side
from demo_sdtps.runtime.distributed import broadcast_from_main

CrossModal = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""mAP and Rank-1, in [0, 1], by the set of the query and that of the gallery (`modality_sets`); None where undefined."""


def modality_sets(modalities: Sequence[str]) -> dict[str, str]:
    """R, N, T, RN, RT, NT, RNT: the modalities that are present, and the case of `CASES` in which they are."""
    return {
        "".join(modality[0] for modality in modalities if modality not in missing): case
        for case, missing in reversed(missing_cases(modalities).items())
    }


def evaluate_cross_modal(cfg: CfgNode, model: Model, data: TestData) -> CrossModal:
    """`rank_sets` of the test data, from one pass over its images."""
    cases = missing_cases(model.modalities)
    features = extract_features(cfg, model, data.loader, list(cases.values()), len(data.samples))
    return broadcast_from_main(
        lambda: rank_sets(cfg, model, dict(zip(cases, features, strict=True)), data)
    )


def rank_sets(
    cfg: CfgNode, model: Model, features: Mapping[str, Mapping[int, torch.Tensor]], data: TestData
) -> CrossModal:
    """Score every set of modalities of the query against every one of the gallery, without re-ranking.

    `features` (samples, D) by case of `CASES` and return pattern. A triplet is compared by the images that it has of a set's
    modalities, as everywhere; a cell in which no query has any in common with the gallery is undefined.
    """
    device, sets = model_device(model), modality_sets(model.modalities)
    pattern = cfg.TEST.RETURN_PATTERN
    comparison = make_comparison(cfg, pattern, cfg.TEST.FEAT_NORM == "yes")
    matrices: dict[str, dict[str, dict[str, float | None]]] = {
        name: {one: {} for one in sets} for name in ("mAP", "Rank-1")
    }
    for one, other in product(sets, repeat=2):
        query, gallery = (
            select_side(cfg, features[case][pattern].to(device), data.without(CASES[case]), rows)
            for case, rows in ((sets[one], data.query), (sets[other], data.gallery))
        )
        is_defined = len(find_incomparable(comparison, query[1], gallery[1])) < len(data.query)
        distances = measure_in_memory(comparison, query, gallery)
        ranking = rank_distances(cfg, distances, data) if is_defined else None
        matrices["mAP"][one][other] = ranking.mAP if ranking else None
        matrices["Rank-1"][one][other] = ranking.rank(1) if ranking else None
    return matrices
