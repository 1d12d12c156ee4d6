"""Benchmarks of mAP and CMC, and of re-ranking, relative to whole matrices (docs/method.md)."""
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from demo_sdtps.benchmarks.plain import demo_ranking
from demo_sdtps.benchmarks.rows import Row, check_equal, in_turns, peak_memory, speed_row
from demo_sdtps.evaluation.metrics import evaluate_distances, evaluate_ranking, squared_distances
from demo_sdtps.evaluation.reranking import k_reciprocal

CPU = torch.device("cpu")
GIB = 2**30
CAMERAS = 6
PER_IDENTITY = 21  # gallery samples per identity, as in Market-1501
SPREAD = 1.5  # norm of the deviation of a sample from the centre of its identity, which has norm 1

Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Features, identities and cameras of query and gallery, in the order of `evaluate_ranking`."""


def ranking_rows(quick: bool = False, device: torch.device = CPU) -> list[Row]:
    """mAP and CMC: speed relative to the loop, on a CPU also time by the size of the gallery, and memory."""
    speed = ranking_speed_rows(quick, device)
    if device.type != "cpu":
        return speed
    large = (20, 2000, 16) if quick else (128, 1_000_000, 512)
    return [*speed, *_linear_rows(quick),
            # More queries need memory for their features only.
            *_cost_rows(f"mAP and CMC of {large[0]:,} × {large[1]:,}, width {large[2]}; 10,000 queries are 20 MB more",
                        rank_random, large, 4)]


def ranking_speed_rows(quick: bool, device: torch.device) -> list[Row]:
    """mAP and CMC of distances and of features on `device`, relative to the loop."""
    queries, gallery, width = (40, 300, 16) if quick else (3368, 15_913, 128)
    case = clustered(queries, gallery, width, device)
    distance = squared_distances(*case[:2])
    labels = case[2:]
    arrays = [side.cpu().numpy() for side in (distance, *labels)]
    found = evaluate_distances(distance, *labels)
    cmc, mean_average_precision = demo_ranking.evaluate_distances(*arrays)
    check_equal("mAP and CMC", torch.tensor([found.mAP, *found.cmc]), torch.tensor([mean_average_precision, *cmc]), 1e-5)
    seconds = in_turns("mAP and CMC", {"reference": lambda: demo_ranking.evaluate_distances(*arrays),
                                       "ours": lambda: evaluate_distances(distance, *labels),
                                       "features": lambda: evaluate_ranking(*case)}, 1 if quick else 2, device)
    size = f"{queries:,} × {gallery:,}"
    return [speed_row(f"mAP and CMC of distances, {size}, mAP {found.mAP:.2f}", seconds, 20),
            Row(f"mAP and CMC of features of width {width}, {size}", None, seconds["features"], "s", None)]


def reranking_rows(quick: bool = False, device: torch.device = CPU) -> list[Row]:
    """k-reciprocal re-ranking: speed relative to whole matrices, on a CPU also memory; with the same images on both sides as
    RGBNT201."""
    speed = reranking_speed_rows(quick, device)
    if device.type != "cpu":
        return speed
    many = (60, 120, 16) if quick else (5000, 20_000, 512)
    return [*speed, *_cost_rows(f"re-ranking, {many[0]:,} + {many[1]:,}, width {many[2]}", rerank_random, many, 8)]


def reranking_speed_rows(quick: bool, device: torch.device) -> list[Row]:
    """k-reciprocal re-ranking of features on `device`, relative to whole matrices on the CPU."""
    queries, gallery, width = (30, 60, 16) if quick else (836, 836, 1536)
    query, other = clustered(queries, gallery, width, device)[:2]
    rows = []
    for what, sides in (("the same images", (query, query)), ("other images", (query, other))):
        arrays = [side.cpu().numpy() for side in sides]
        found, expected = k_reciprocal(*sides), demo_ranking.k_reciprocal(*arrays)
        check_equal("re-ranking", found.cpu(), torch.from_numpy(expected), 2e-2)
        seconds = in_turns("re-ranking", {"reference": partial(demo_ranking.k_reciprocal, *arrays),
                                          "ours": partial(k_reciprocal, *sides)}, 1 if quick else 4, device)
        rows.append(speed_row(f"re-ranking, {len(sides[0]):,} + {len(sides[1]):,}, {what}, width {width}", seconds, 20))
    return rows


def _linear_rows(quick: bool) -> list[Row]:
    """Seconds per query and million of gallery samples for several sizes of the gallery; a ratio of 1 is linear."""
    queries, sizes = (4, (300, 600, 1200)) if quick else (32, (15_913, 250_000, 1_000_000))
    cases = {size: clustered(queries, size, 128) for size in sizes}
    seconds = in_turns("galleries", {size: partial(evaluate_ranking, *case) for size, case in cases.items()}, 2)
    rates = {size: 1e6 * found / size / queries for size, found in seconds.items()}
    return [Row(f"mAP and CMC per query and million of gallery, of {size:,} beside {sizes[0]:,}", rates[sizes[0]], rates[size],
                "s", rates[sizes[0]] / rates[size]) for size in sizes[1:]]


def _cost_rows(what: str, work: Callable[..., object], size: tuple[int, int, int], at_most: float) -> list[Row]:
    started = time.perf_counter()
    memory = peak_memory(work, *size) / GIB
    return [Row(f"{what}: process with its random features", None, time.perf_counter() - started, "s", None),
            Row(f"{what}: peak memory", None, memory, "GiB", None, f"≤ {at_most:g} GiB", memory <= at_most)]


def rank_random(queries: int, gallery: int, width: int) -> None:
    evaluate_ranking(*clustered(queries, gallery, width))


def rerank_random(queries: int, gallery: int, width: int) -> None:
    k_reciprocal(*clustered(queries, gallery, width)[:2])


def clustered(queries: int, gallery: int, width: int, device: torch.device = CPU) -> Case:
    """Random L2-normalised features around one centre per identity, with about `PER_IDENTITY` gallery samples each, on
    `device`."""
    generator = torch.Generator().manual_seed(0)
    identities = max(2, gallery // PER_IDENTITY)
    centres = F.normalize(torch.randn(identities, width, generator=generator), dim=1)

    def side(samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own = torch.arange(samples) % identities
        features = torch.randn(samples, width, generator=generator).mul_(SPREAD / width**0.5)
        for rows in torch.arange(samples).split(1 << 14):  # without a second copy of a large gallery
            features[rows] = F.normalize(features[rows] + centres[own[rows]], dim=1)
        return features.to(device), own, torch.randint(CAMERAS, (samples,), generator=generator)

    (query_features, query_ids, query_cameras), (gallery_features, gallery_ids, gallery_cameras) = side(queries), side(gallery)
    return query_features, gallery_features, query_ids, gallery_ids, query_cameras, gallery_cameras
