"""Benchmark of exact search in a large gallery by faiss, beside torch (docs/search.md)."""
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from demo_sdtps.benchmarks.rows import Row, check_equal, in_turns, peak_memory, speed_row
from demo_sdtps.evaluation.metrics import squared_distances
from demo_sdtps.retrieval.gallery import SHARD_ROWS, Index
from demo_sdtps.retrieval.nearest import Hits, nearest
from demo_sdtps.retrieval.store import Stack, Store, open_store

GIB = 2**30
TOP = 10
PER_IDENTITY = 21  # gallery samples per identity, as in Market-1501
LATENT = 32  # dimensions in which identities differ
OWN, NOISE = 0.5, 0.3  # deviations of a sample from its identity in these dimensions, and from them in all
QUERIES = -1  # block number of the queries


def search_rows(quick: bool = False) -> list[Row]:
    """Exact search of an index on disk: speed relative to torch's distances and top-k of each block, and memory."""
    queries, gallery, width, rounds = (20, 500, 16, 1) if quick else (1000, 1_000_000, 512, 1)
    size, wanted = f"{queries:,} queries in {gallery:,}, width {width}", block(QUERIES, queries, gallery, width)
    with tempfile.TemporaryDirectory() as folder:
        write_index(Path(folder), gallery, width)
        index = opened(Path(folder))
        cases = {"reference": partial(torch_nearest, wanted, index.features(), TOP),
                 "ours": partial(nearest, wanted, index.features(), index.names, TOP)}
        found, expected = (torch.from_numpy(cases[name]().distances) for name in ("ours", "reference"))
        check_equal("search", found, expected)
        seconds = in_turns("search", cases, rounds)
        opening = in_turns("open", {"ours": partial(opened, Path(folder))}, rounds)["ours"]
        memory = peak_memory(search_index, folder, queries, gallery, width) / GIB
    return [speed_row(f"exact search of {size}", seconds), Row("… opening of the index on disk", None, opening, "s", None),
            Row("… peak memory", None, memory, "GiB", None, "≤ 4 GiB", memory <= 4)]


def block(number: int, rows: int, gallery: int, width: int) -> np.ndarray:
    """Features (rows, width) of length 1 by block number: identities in `LATENT` dimensions, with deviations and noise."""
    identities = max(1, gallery // PER_IDENTITY)
    fixed = torch.Generator().manual_seed(0)
    centres, mixture = torch.randn(identities, LATENT, generator=fixed), torch.randn(LATENT, width, generator=fixed)
    own = torch.Generator().manual_seed(number + 2)
    latent = centres[torch.randint(identities, (rows,), generator=own)]
    latent += OWN * torch.randn(rows, LATENT, generator=own)
    features = torch.randn(rows, width, generator=own).mul_(NOISE * LATENT**0.5).addmm_(latent, mixture)
    return F.normalize(features, dim=1, out=features).numpy()


def torch_nearest(queries: np.ndarray, gallery: Stack, top: int) -> Hits:
    """The evaluation's distances of a block at a time, and torch's top-k."""
    wanted = torch.from_numpy(queries)
    values, rows = torch.full((len(queries), 0), torch.inf), torch.full((len(queries), 0), -1)
    for start, features in gallery:
        near, index = squared_distances(wanted, torch.from_numpy(features.copy())).topk(min(top, len(features)), largest=False)
        values, order = torch.cat([values, near], dim=1).topk(min(top, values.shape[1] + near.shape[1]), largest=False)
        rows = torch.cat([rows, index + start], dim=1).gather(1, order)
    return Hits(rows.numpy(), values.numpy())


def write_index(folder: Path, gallery: int, width: int) -> None:
    """An index as tools/search.py writes it."""
    index = Index(Store(folder, {}, "", {"approximate": {}}))
    for number, start in enumerate(range(0, gallery, SHARD_ROWS)):
        features = block(number, min(SHARD_ROWS, gallery - start), gallery, width)
        index.add([(f"{row:08}", "-") for row in range(start, start + len(features))], features)
    index.commit()


def opened(folder: Path) -> Index:
    store = open_store(folder, "")
    assert store is not None
    return Index(store)


def search_index(folder: str, queries: int, gallery: int, width: int) -> None:
    """What tools/search.py does with features of queries."""
    index = opened(Path(folder))
    nearest(block(QUERIES, queries, gallery, width), index.features(), index.names, TOP)
