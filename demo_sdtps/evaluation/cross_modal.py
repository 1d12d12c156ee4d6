"""Any modality against any: the sets of modalities of the query against those of the gallery (docs/method.md)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import product

import torch
from yacs.config import CfgNode

from demo_sdtps.evaluation.extraction import CASES, cases_of, extract_features
from demo_sdtps.evaluation.metrics import squared_distances
from demo_sdtps.evaluation.protocol import TestData, normalise, rank_distances
from demo_sdtps.modeling import DeMo
from demo_sdtps.runtime.distributed import broadcast_from_main

CrossModal = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""mAP and Rank-1, in [0, 1], by the set of the query and that of the gallery, as names of `sets_of`; None where undefined."""


def sets_of(modalities: Sequence[str]) -> dict[str, str]:
    """R, N, T, RN, RT, NT, RNT: the modalities that are present, and the case of `CASES` in which they are."""
    return {
        "".join(modality[0] for modality in modalities if modality not in missing): case
        for case, missing in reversed(cases_of(modalities).items())
    }


def set_distances(
    query: torch.Tensor,
    gallery: torch.Tensor,
    present: Sequence[frozenset[str]],
    sources: Sequence[frozenset[str]],
    how: str,
    scale: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor | None:
    """Squared distances (Q, G) of features (Q, K, C) and (G, K, C) whose K parts are made from the modalities in `sources`.

    `present` are the modalities of the query and of the gallery, `scale` normalises features (n, D). `how`: "all" parts; those
    that are "shared", as all modalities that they are made from are present on both sides, None where none is; or the mean over
    the "pairs" of a part that is present in the query and one in the gallery.
    """
    places, other_places = (
        [place for place, source in enumerate(sources) if how == "all" or source <= side]
        for side in present
    )
    if how == "pairs":
        pairs = [
            squared_distances(scale(query[:, one]), scale(gallery[:, other]))
            for one, other in product(places, other_places)
        ]
        return reduce(torch.add, pairs) / len(pairs)
    shared = [place for place in places if place in other_places]
    if not shared:
        return None
    return squared_distances(*(scale(side[:, shared].flatten(1)) for side in (query, gallery)))


def evaluate_cross_modal(cfg: CfgNode, model: DeMo, data: TestData) -> CrossModal:
    """`rank_sets` of the test data, from one pass over its images."""
    cases = cases_of(model.modalities)
    features = extract_features(cfg, model, data.loader, list(cases.values()), len(data.samples))
    return broadcast_from_main(
        lambda: rank_sets(cfg, model, dict(zip(cases, features, strict=True)), data)
    )


def rank_sets(
    cfg: CfgNode, model: DeMo, features: Mapping[str, Mapping[int, torch.Tensor]], data: TestData
) -> CrossModal:
    """Score every set of modalities of the query against every one of the gallery, without re-ranking.

    `features` (samples, D) by case of `CASES` and return pattern. Equal sets are compared as everywhere, unequal ones by
    TEST.CROSS_MODAL_DISTANCE.
    """
    device, sets = next(model.parameters()).device, sets_of(model.modalities)
    matrices: dict[str, dict[str, dict[str, float | None]]] = {
        name: {one: {} for one in sets} for name in ("mAP", "Rank-1")
    }
    for one, other in product(sets, repeat=2):
        how = "all" if one == other else cfg.TEST.CROSS_MODAL_DISTANCE
        pattern = 1 if how == "pairs" else cfg.TEST.RETURN_PATTERN
        sources = model.layout.sources[pattern]
        query, gallery = (
            features[sets[name]][pattern][side].to(device).unflatten(1, (len(sources), -1))
            for name, side in ((one, data.query), (other, data.gallery))
        )
        present = [frozenset(model.modalities) - CASES[sets[name]] for name in (one, other)]
        scale = partial(normalise, cfg)
        distances = set_distances(query, gallery, present, sources, how, scale)
        ranking = None if distances is None else rank_distances(cfg, distances.__getitem__, data)
        matrices["mAP"][one][other] = ranking.mAP if ranking else None
        matrices["Rank-1"][one][other] = ranking.rank(1) if ranking else None
    return matrices
