"""Benchmarks of search in a large gallery on disk: exact beside torch, and approximate (docs/search.md)."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.rows import Row, check_near, peak_memory, ratio_row
from benchmarks.timing import in_turns
from demo_sdtps.evaluation.distances import squared_distances
from demo_sdtps.retrieval.approximate import approximate, recall, refresh
from demo_sdtps.retrieval.features import Nearest
from demo_sdtps.retrieval.nearest import View, nearest
from demo_sdtps.retrieval.table import Rows, create_table, open_table

GIB = 2**30
TOP = 10
BLOCK = 8192  # rows that are written together
PER_IDENTITY = 21  # gallery samples per identity, as in Market-1501
LATENT = 32  # dimensions in which identities differ
SPREAD, NOISE = 0.5, 0.3  # deviations of a sample from its identity in these, and from them in all
QUERIES = -1  # block number of the queries


def search_rows(quick: bool, device: torch.device) -> list[Row]:
    """Exact search of a table: speed relative to torch's distances and top-k of each block, and memory."""
    queries, gallery, width = (20, 500, 16) if quick else (1000, 1_000_000, 512)
    size, query = (
        f"{queries:,} queries in {gallery:,}, width {width}",
        block(QUERIES, queries, gallery, width),
    )
    with tempfile.TemporaryDirectory() as place:
        write_table(place, gallery, width)
        rows = read_rows(place)
        cases = {
            "reference": partial(torch_nearest, query, rows),
            "ours": partial(exact, query, rows),
        }
        actual, expected = (
            torch.from_numpy(cases[name]().distances) for name in ("ours", "reference")
        )
        check_near("search", actual, expected)
        seconds = in_turns("search", cases, 1)
        opening = in_turns("opening", {"ours": partial(read_rows, place)}, 1)["ours"]
        memory = peak_memory(search_table, place, queries, gallery, width) / 1024
    return [
        ratio_row(f"exact search of {size}", seconds["reference"], seconds["ours"]),
        Row("… opening of the table", None, opening, "s", None),
        Row("… peak memory", None, memory, "GiB", None, "≤ 1.5 GiB", memory <= 1.5),
    ]


def approximate_rows(quick: bool, device: torch.device) -> list[Row]:
    """The approximate index of a table: time, recall@10, growth by a tenth."""
    queries, gallery, width = (20, 1000, 16) if quick else (1000, 200_000, 512)
    query, first = block(QUERIES, queries, gallery, width), gallery * 10 // 11
    with tempfile.TemporaryDirectory() as place:
        table = write_table(place, first, width)
        _, building = timed(partial(refresh, table))
        write_table(place, gallery, width, first)
        _, growing = timed(partial(refresh, table))
        rows = read_rows(place)
        whole, exact_seconds = timed(partial(exact, query, rows))
        hits, seconds = timed(partial(approximate, rows, False, query, view(rows), TOP))
        folder = Path(place, "features.lance", "_indices")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    features = gallery * width * query.itemsize
    return [
        Row(f"approximate index of {first:,}, width {width}", None, building, "s", None),
        Row(f"… growth by {gallery - first:,}", None, growing, "s", None),
        ratio_row(f"… search of {queries:,} queries, beside the exact one", exact_seconds, seconds),
        Row("… its size, beside the features", features / GIB, size / GIB, "GiB", features / size),
        Row(f"… recall@{TOP}", None, recall(hits, whole), "", None),
    ]


def block(number: int, rows: int, gallery: int, width: int) -> np.ndarray:
    """Features (rows, width) of length 1 by block number: identities in `LATENT` dimensions, with deviations and noise."""
    identities = max(1, gallery // PER_IDENTITY)
    fixed = torch.Generator().manual_seed(0)
    centres = torch.randn(identities, LATENT, generator=fixed)
    mixture = torch.randn(LATENT, width, generator=fixed)
    draws = torch.Generator().manual_seed(number + 2)
    latent = centres[torch.randint(identities, (rows,), generator=draws)]
    latent += SPREAD * torch.randn(rows, LATENT, generator=draws)
    features = torch.randn(rows, width, generator=draws).mul_(NOISE * LATENT**0.5)
    return F.normalize(features.addmm_(latent, mixture), dim=1).numpy()


def write_table(place: str, gallery: int, width: int, first: int = 0) -> Any:
    """The table of a gallery, as demo-sdtps search writes it, or its rows from `first` on."""
    import pyarrow as pa

    columns = {"name": pa.string(), "present": pa.string()}
    table = open_table(place) if first else create_table(place, {}, columns, width)
    assert table
    for start in range(first, gallery, BLOCK):
        features = block(start, min(BLOCK, gallery - start), gallery, width)
        names = [f"{row:08}" for row in range(start, start + len(features))]
        table.put({"name": names, "present": ["RGB,NI,TI"] * len(names)}, features)
    return table


def read_rows(place: str) -> Rows:
    table = open_table(place)
    assert table
    return table.read()


def view(rows: Rows) -> View:
    return View(rows, np.arange(len(rows)))


def exact(query: np.ndarray, rows: Rows) -> Nearest:
    return nearest(query, view(rows), TOP)


def torch_nearest(query: np.ndarray, rows: Rows) -> Nearest:
    """The evaluation's distances of a block at a time, and torch's top-k."""
    features = torch.from_numpy(query)
    values, places = torch.full((len(query), 0), torch.inf), torch.full((len(query), 0), -1)
    for numbers, others in view(rows).blocks(len(rows)):
        distances = squared_distances(features, others)
        near, index = distances.topk(min(TOP, len(others)), largest=False)
        values, order = torch.cat([values, near], dim=1).topk(
            min(TOP, values.shape[1] + near.shape[1]), largest=False
        )
        places = torch.cat([places, torch.from_numpy(numbers)[index]], dim=1).gather(1, order)
    return Nearest(places.numpy(), values.numpy())


def search_table(place: str, queries: int, gallery: int, width: int) -> None:
    """What demo-sdtps search does with features of queries."""
    exact(block(QUERIES, queries, gallery, width), read_rows(place))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """A result, and its seconds."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started
