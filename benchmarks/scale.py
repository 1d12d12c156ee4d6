"""Benchmarks of features in shards: ranking and search of a gallery larger than the memory, and what extraction costs."""
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from demo_sdtps.benchmarks.model import BATCH, CLASSES, configuration, name_of, random_batch
from demo_sdtps.benchmarks.ranking import CAMERAS, GIB, PER_IDENTITY, SPREAD
from demo_sdtps.benchmarks.rows import Row, in_turns, peak_memory
from demo_sdtps.datasets import Sample
from demo_sdtps.engine.evaluation.streaming import evaluate_stream
from demo_sdtps.engine.feature_sets import BLOCK_ELEMENTS, FeatureSet, open_features
from demo_sdtps.engine.runtime import choose_device, choose_precision, inference
from demo_sdtps.engine.search.nearest import nearest
from demo_sdtps.engine.shards import open_shards, write_manifest, write_shard
from demo_sdtps.modeling import make_model
from demo_sdtps.tools.export_features import SHARD_ROWS

TOP = 10
MOST = 2  # GiB
ORIGIN = {"return_pattern": 3, "checkpoint_sha256": "", "dtype": "float16"}


def scale_rows(quick: bool = False) -> Iterator[Row]:
    """Extraction of a triplet, and ranking and search of shards in float16, with the peak memory of a process of each."""
    yield from extraction_rows(1 if quick else BATCH)
    queries, gallery, width = (20, 600, 16) if quick else (1000, 1_000_000, 1536)
    size = f"{queries:,} queries in {gallery:,} × {width:,}, float16"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds = timed(partial(write, folder, queries, gallery, width))
        bytes_on_disk = sum(path.stat().st_size for path in (folder / "gallery").iterdir())
        yield Row(f"gallery of {gallery:,} × {width:,}, float16, with labels and paths: on disk", None, bytes_on_disk / GIB,
                  "GiB", None)
        yield Row("… generated and written in shards, with digests", None, seconds, "s", None)
        yield Row("… opened, digests compared", None, timed(partial(open_shards, folder / "gallery", check=True)), "s", None)
        yield Row("… read once, as float32 of length 1", None, timed(lambda: sum(1 for _ in opened(folder)[1].features)), "s",
                  None)
        products = in_turns("products", {"block": products_of_a_block(queries, width)}, 3)["block"]
        yield Row(f"matrix products of {size}: the least time", None,
                  products * gallery / block_rows(width), "s", None)
        for what, work in (("mAP and CMC", rank), (f"search of the {TOP} nearest", search)):
            seconds = timed(partial(work, folder))
            memory = peak_memory(work, folder) / GIB
            yield Row(f"{what} of {size}", None, seconds, "s", None)
            yield Row("… peak memory of a process", None, memory, "GiB", None, f"≤ {MOST} GiB", memory <= MOST)


def extraction_rows(batch: int) -> Iterator[Row]:
    """Time of a triplet by CLIP's ViT-B/16 with HDM and ATMoE, from decoded images."""
    cfg = configuration()
    device = choose_device(cfg)
    model = make_model(cfg, CLASSES, CAMERAS).to(device)
    images, cameras, _ = random_batch(cfg, batch, device)
    for precision in dict.fromkeys((None, choose_precision("auto", device))):
        with inference(model, precision):
            seconds = in_turns("extraction", {"ours": lambda: model(images, cameras)}, 2, device)["ours"]
        yield Row(f"extraction of a triplet, ViT-B/16, {name_of(precision or torch.float32)}, {batch} at a time", None,
                  seconds / batch, "s", None)


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call; a gallery of this size needs no warm-up."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def block_rows(width: int) -> int:
    return max(1, BLOCK_ELEMENTS // width)


def products_of_a_block(queries: int, width: int) -> Callable[[], object]:
    query, block = torch.randn(queries, width), torch.randn(block_rows(width), width)
    return lambda: query @ block.T


def write(folder: Path, queries: int, gallery: int, width: int) -> None:
    """Shards of random features around one centre per identity, as export_features.py writes them, of queries and gallery."""
    generator = torch.Generator().manual_seed(0)
    identities = max(2, gallery // PER_IDENTITY)
    centres = F.normalize(torch.randn(identities, width, generator=generator), dim=1)
    for name, count in (("query", queries), ("gallery", gallery)):
        records = []
        for number, start in enumerate(range(0, count, SHARD_ROWS)):
            own = torch.arange(start, min(start + SHARD_ROWS, count)) % identities
            features = torch.randn(len(own), width, generator=generator).mul_(SPREAD / width**0.5).add_(centres[own])
            cameras = torch.randint(CAMERAS, (len(own),), generator=generator).tolist()
            samples = [Sample(tuple(f"{name}/{part}/{row:09}.jpg" for part in ("RGB", "NI", "TI")), identity, camera)
                       for row, (identity, camera) in enumerate(zip(own.tolist(), cameras, strict=True), start)]
            records.append(write_shard(folder / name, number, F.normalize(features).half().numpy(), samples, ORIGIN))
        write_manifest(folder / name, ORIGIN, {}, records)


def opened(folder: Path) -> tuple[FeatureSet, FeatureSet]:
    return open_features(folder / "query"), open_features(folder / "gallery")


def in_memory(query: FeatureSet) -> np.ndarray:
    return np.concatenate([block for _, block in query.features])


def rank(folder: Path) -> None:
    """What tools/rank_features.py does for mAP and CMC."""
    query, gallery = opened(folder)
    evaluate_stream(torch.from_numpy(in_memory(query)), gallery.features, (query.ids, gallery.ids), (query.cams, gallery.cams))


def search(folder: Path) -> None:
    """What tools/rank_features.py does for its hits."""
    query, gallery = opened(folder)
    nearest(in_memory(query), gallery.features, gallery.names, TOP)
