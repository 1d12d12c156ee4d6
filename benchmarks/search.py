"""Rows of benchmarks/run.py: exact search in large galleries (docs/search.md), beside faiss where it is installed."""

import tempfile
from functools import partial
from importlib.util import find_spec
from pkgutil import resolve_name

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.rows import Row, peak_memory, ratio_row
from benchmarks.timing import in_turns
from demo_sdtps.evaluation.distances import Comparison, Side, complete_side
from demo_sdtps.retrieval.nearest import Gallery, Nearest, nearest, search_sets
from demo_sdtps.retrieval.table import create_table, open_table

TOP = 10
BLOCK = 8192  # rows that are written together
PER_IDENTITY = 21  # gallery samples per identity, as in Market-1501
LATENT = 32  # dimensions in which identities differ
SPREAD, NOISE = 0.5, 0.3  # deviations of a sample from its identity in these, and from them in all
QUERIES = -1  # block number of the queries


def search_rows(quick: bool, device: torch.device) -> list[Row]:
    """Exact search of a table: seconds, those of reading it, and memory."""
    queries, gallery, width = (20, 500, 16) if quick else (1000, 1_000_000, 512)
    query = block(QUERIES, queries, gallery, width)
    with tempfile.TemporaryDirectory() as place:
        write_table(place, gallery, width)
        side = read_side(place)
        kept, few = Gallery(Comparison(), side), complete_side(torch.from_numpy(query[:1]))
        works = {
            "search": partial(exact, query, side),
            "reading": partial(read_side, place),
            "again": partial(search_sets, few, kept, TOP),
            "product": partial(torch.mm, few[0], side[0].T),
        }
        seconds = in_turns("search", works, 1)
        memory = peak_memory(search_table, place, queries, gallery, width) / 1024
    what = f"exact search of {queries:,} queries in {gallery:,}, width {width}"
    return [
        Row(what, None, seconds["search"], "s", None),
        Row("… one query again, beside a product", seconds["product"], seconds["again"], "s", None),
        Row("… reading of the table", None, seconds["reading"], "s", None),
        Row("… peak memory", None, memory, "GiB", None),
        *(faiss_rows(query, gallery // 5, width) if find_spec("faiss") else []),
    ]


def faiss_rows(query: np.ndarray, gallery: int, width: int) -> list[Row]:
    """A search again, in a gallery that the process has read, beside faiss's exact index: seconds and hits in common."""
    faiss = resolve_name("faiss")
    starts = range(0, gallery, BLOCK)
    rows = [block(start, min(BLOCK, gallery - start), gallery, width) for start in starts]
    side = complete_side(torch.from_numpy(np.concatenate(rows)))
    flat, kept = faiss.IndexFlatIP(width), Gallery(Comparison(), side)
    flat.add(side[0].numpy())
    many, one = (complete_side(torch.from_numpy(query[:count])) for count in (None, 1))
    works = {
        "faiss": partial(flat.search, query, TOP),
        "ours": partial(search_sets, many, kept, TOP),
        "faiss, one": partial(flat.search, query[:1], TOP),
        "ours, one": partial(search_sets, one, kept, TOP),
    }
    seconds = in_turns("search beside faiss", works, 5)
    pairs = zip(flat.search(query, TOP)[1], search_sets(many, kept, TOP).rows, strict=True)
    common = float(np.mean([np.isin(*pair).mean() for pair in pairs]))
    what = f"search again of {len(query):,} queries in {gallery:,}, beside faiss {faiss.__version__} flat"
    return [
        ratio_row(what, seconds["faiss"], seconds["ours"], 0.83),
        ratio_row("… of one query", seconds["faiss, one"], seconds["ours, one"]),
        Row("… hits in common", None, common, "", None),
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


def write_table(place: str, gallery: int, width: int) -> None:
    """Write the table of a gallery, as demo-sdtps search does."""
    import pyarrow as pa

    columns = {"name": pa.string(), "present": pa.string()}
    table = create_table(place, {}, columns, width)
    for start in range(0, gallery, BLOCK):
        features = block(start, min(BLOCK, gallery - start), gallery, width)
        names = [f"{row:08}" for row in range(start, start + len(features))]
        table.put({"name": names, "present": ["RGB,NI,TI"] * len(names)}, features)


def read_side(place: str) -> Side:
    table = open_table(place)
    assert table
    return table.side()[1]


def exact(query: np.ndarray, gallery: Side) -> Nearest:
    return nearest(torch.from_numpy(query), gallery[0], TOP)


def search_table(place: str, queries: int, gallery: int, width: int) -> None:
    """What demo-sdtps search does with features of queries."""
    exact(block(QUERIES, queries, gallery, width), read_side(place))
