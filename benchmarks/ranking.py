"""Benchmarks of mAP and CMC, and of re-ranking, relative to whole matrices (docs/method.md)."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.rows import Row, check_near, compare
from demo_sdtps.evaluation.distances import k_reciprocal, matrix_distances, squared_distances
from demo_sdtps.evaluation.metrics import Labels, Ranking, score_distances
from tests.reference import demo_ranking

CAMERA_COUNT = 6
PER_IDENTITY = 21  # gallery samples per identity, as in Market-1501
SPREAD = 1.5  # norm of the deviation of a sample from the centre of its identity, which has norm 1

Side = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Features, identities and cameras of the queries or of the gallery."""


def ranking_rows(quick: bool, device: torch.device) -> list[Row]:
    """mAP and CMC of distances on `device`, relative to the loop."""
    queries, gallery, width = (40, 300, 16) if quick else (3368, 15_913, 128)
    features, ids, cameras = zip(*cluster_features(queries, gallery, width, device), strict=True)
    distance = squared_distances(*features)
    arrays = [tensor.cpu().numpy() for tensor in (distance, *ids, *cameras)]
    labels = Labels(arrays[1], arrays[3], arrays[3]), Labels(arrays[2], arrays[4], arrays[4])

    def ours() -> Ranking:
        return score_distances(matrix_distances(distance), *labels)

    metrics, reference = ours(), partial(demo_ranking.evaluate_distances, *arrays)
    cmc, mean_average_precision = reference()
    expected = torch.tensor([mean_average_precision, *cmc])
    check_near("mAP and CMC", torch.tensor([metrics.mAP, *metrics.cmc]), expected, 1e-5)
    what = f"mAP and CMC of distances, {queries:,} × {gallery:,}, mAP {metrics.mAP:.2f}"
    return [compare(what, reference, ours, 1 if quick else 2, device, 8)]


def reranking_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """k-reciprocal re-ranking of features on `device`, relative to whole matrices on the CPU; with the same images on both
    sides as RGBNT201, and with others."""
    queries, gallery, width = (30, 60, 16) if quick else (836, 836, 1536)
    (query, *_), (other, *_) = cluster_features(queries, gallery, width, device)
    for name, sides in (("the same images", (query, query)), ("other images", (query, other))):
        arrays = [side.cpu().numpy() for side in sides]
        reference, ours = partial(demo_ranking.k_reciprocal, *arrays), partial(k_reciprocal, *sides)
        check_near("re-ranking", ours().cpu(), torch.from_numpy(reference()), 2e-2)
        what = f"re-ranking, {len(sides[0]):,} + {len(sides[1]):,}, {name}, width {width}"
        yield compare(what, reference, ours, 1 if quick else 4, device, 12)


def cluster_features(
    queries: int, gallery: int, width: int, device: torch.device
) -> tuple[Side, Side]:
    """Random L2-normalised features around one centre per identity, with about `PER_IDENTITY` gallery samples each, on
    `device`."""
    generator = torch.Generator().manual_seed(0)
    identities = max(2, gallery // PER_IDENTITY)
    centres = F.normalize(torch.randn(identities, width, generator=generator), dim=1)

    def side(samples: int) -> Side:
        identity_of = torch.arange(samples) % identities
        noise = SPREAD / width**0.5 * torch.randn(samples, width, generator=generator)
        features = F.normalize(centres[identity_of] + noise, dim=1).to(device)
        return features, identity_of, torch.randint(CAMERA_COUNT, (samples,), generator=generator)

    return side(queries), side(gallery)
