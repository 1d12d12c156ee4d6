"""Benchmarks of mAP and CMC, and of re-ranking, relative to whole matrices (docs/method.md)."""

from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.rows import check_near, speed_row
from demo_sdtps.evaluation.metrics import evaluate_distances, squared_distances
from demo_sdtps.evaluation.reranking import k_reciprocal
from demo_sdtps.reports.rows import Row
from demo_sdtps.training.timing import in_turns
from tests.reference import demo_ranking

CPU = torch.device("cpu")
CAMERA_COUNT = 6
PER_IDENTITY = 21  # gallery samples per identity, as in Market-1501
SPREAD = 1.5  # norm of the deviation of a sample from the centre of its identity, which has norm 1

RankingCase = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]
"""Features, identities and cameras of query and gallery."""


def ranking_rows(quick: bool = False, device: torch.device = CPU) -> list[Row]:
    """mAP and CMC of distances on `device`, relative to the loop."""
    queries, gallery, width = (40, 300, 16) if quick else (3368, 15_913, 128)
    case = cluster_features(queries, gallery, width, device)
    distance = squared_distances(*case[:2])
    labels = case[2:]
    arrays = [side.cpu().numpy() for side in (distance, *labels)]
    metrics = evaluate_distances(distance, *labels)
    cmc, mean_average_precision = demo_ranking.evaluate_distances(*arrays)
    check_near(
        "mAP and CMC",
        torch.tensor([metrics.mAP, *metrics.cmc]),
        torch.tensor([mean_average_precision, *cmc]),
        1e-5,
    )
    seconds = in_turns(
        "mAP and CMC",
        {
            "reference": lambda: demo_ranking.evaluate_distances(*arrays),
            "ours": lambda: evaluate_distances(distance, *labels),
        },
        1 if quick else 2,
        device,
    )
    return [
        speed_row(
            f"mAP and CMC of distances, {queries:,} × {gallery:,}, mAP {metrics.mAP:.2f}",
            seconds,
            20,
        )
    ]


def reranking_rows(quick: bool = False, device: torch.device = CPU) -> list[Row]:
    """k-reciprocal re-ranking of features on `device`, relative to whole matrices on the CPU; with the same images on both
    sides as RGBNT201, and with others."""
    queries, gallery, width = (30, 60, 16) if quick else (836, 836, 1536)
    query, other = cluster_features(queries, gallery, width, device)[:2]
    rows = []
    for what, sides in (("the same images", (query, query)), ("other images", (query, other))):
        arrays = [side.cpu().numpy() for side in sides]
        result, expected = k_reciprocal(*sides), demo_ranking.k_reciprocal(*arrays)
        check_near("re-ranking", result.cpu(), torch.from_numpy(expected), 2e-2)
        seconds = in_turns(
            "re-ranking",
            {
                "reference": partial(demo_ranking.k_reciprocal, *arrays),
                "ours": partial(k_reciprocal, *sides),
            },
            1 if quick else 4,
            device,
        )
        rows.append(
            speed_row(
                f"re-ranking, {len(sides[0]):,} + {len(sides[1]):,}, {what}, width {width}",
                seconds,
                20,
            )
        )
    return rows


def cluster_features(
    queries: int, gallery: int, width: int, device: torch.device = CPU
) -> RankingCase:
    """Random L2-normalised features around one centre per identity, with about `PER_IDENTITY` gallery samples each, on
    `device`."""
    generator = torch.Generator().manual_seed(0)
    identities = max(2, gallery // PER_IDENTITY)
    centres = F.normalize(torch.randn(identities, width, generator=generator), dim=1)

    def side(samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        identity_of = torch.arange(samples) % identities
        features = centres[identity_of] + SPREAD / width**0.5 * torch.randn(
            samples, width, generator=generator
        )
        return (
            F.normalize(features, dim=1).to(device),
            identity_of,
            torch.randint(CAMERA_COUNT, (samples,), generator=generator),
        )

    (query_features, query_ids, query_cameras), (gallery_features, gallery_ids, gallery_cameras) = (
        side(queries),
        side(gallery),
    )
    return query_features, gallery_features, query_ids, gallery_ids, query_cameras, gallery_cameras
