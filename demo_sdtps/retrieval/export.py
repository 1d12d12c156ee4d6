"""What demo-sdtps export does: the features of a split as one file, in shards or as Parquet (docs/retrieval.md)."""

import argparse
import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from yacs.config import CfgNode

from demo_sdtps.config import UserError, with_values
from demo_sdtps.config.cli import count_of, print_lines
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.distances import comparison_of
from demo_sdtps.evaluation.extraction import Model, extract_features
from demo_sdtps.evaluation.protocol import normalise
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.retrieval.feature_sets import LABELS, columns_of, labels_of, samples_digest
from demo_sdtps.retrieval.origin import origin_of
from demo_sdtps.retrieval.store import (
    LOCK,
    SUFFIX,
    Store,
    check_origin,
    check_store_folder,
    open_store,
)
from demo_sdtps.runtime import distributed
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import atomic_write, check_output_file, lock_file
from demo_sdtps.runtime.progress import progress

ROW_GROUP = 8192
"""Rows of Parquet that are in memory at a time, as in a shard."""


def check_output(arguments: argparse.Namespace) -> None:
    """Raise `UserError` for an output that cannot be written."""
    if arguments.shards:
        if arguments.format == "parquet":
            raise UserError("--shards writes a folder, --format parquet a file; give one of them.")
        check_store_folder(arguments.output)
        return
    if arguments.format == "parquet":
        check_extra("--format parquet", "parquet", {"pyarrow": "pyarrow"})
    elif arguments.dtype != "float32":
        raise UserError(
            f"Only shards and Parquet can be {arguments.dtype} (--dtype); give --shards or --format parquet too."
        )
    check_output_file(arguments.output, f".{arguments.format}", arguments.overwrite)


def export_file(
    cfg: CfgNode, arguments: argparse.Namespace, model: Model, samples: Sequence[Sample]
) -> None:
    """Write the features of all samples as one file."""
    loader = test_loader(cfg, distributed.shard_for_rank(samples))
    features = features_of(cfg, arguments, model, loader, total=len(samples))
    if not distributed.is_main():
        return
    arrays: dict[str, Any] = caption_of(cfg) | export_origin(cfg, arguments)
    arrays |= labels_of(samples, modalities_of(cfg))
    arrays["configuration"] = json.dumps(arrays["configuration"])
    paths = np.array([[path or "" for path in sample.paths] for sample in samples])
    # An open file, because numpy would add .npz to a name.
    with atomic_write(arguments.output) as temporary, open(temporary, "wb") as file:
        np.savez(file, features=features, paths=paths, **arrays)
    print_lines(
        f"Wrote {count_of(len(features), 'feature')} of {features.shape[1]} numbers to {arguments.output}"
    )


def export_parquet(
    cfg: CfgNode, arguments: argparse.Namespace, model: Model, samples: Sequence[Sample]
) -> None:
    """Write a Parquet file, of which one row group is in memory at a time; processes share the work on each."""
    for name in (sample.files[0] for sample in samples):
        if name.encode(errors="replace").decode() != name:
            raise UserError(f"The name {name!a} is not UTF-8, as Parquet needs; rename the file.")
    settings = with_values(cfg, {"DATASETS.CACHE": "no"})  # every image is read once

    def groups() -> Iterator[tuple[Sequence[Sample], np.ndarray]]:
        starts = range(0, len(samples), ROW_GROUP)
        for start in progress(starts, "exporting", unit="row group"):
            group = samples[start : start + ROW_GROUP]
            loader = test_loader(settings, distributed.shard_for_rank(group))
            yield group, features_of(settings, arguments, model, loader, total=len(group))

    if not distributed.is_main():
        deque(groups(), maxlen=0)
        return
    facts = caption_of(cfg) | export_origin(cfg, arguments)
    write_parquet(arguments.output, groups(), facts, modalities_of(cfg))
    count = count_of(len(samples), "feature")
    print_lines(f"Wrote {count} in {arguments.dtype} to {arguments.output}")


def write_parquet(
    path: Path,
    groups: Iterable[tuple[Sequence[Sample], np.ndarray]],
    facts: Mapping[str, Any],
    modalities: Collection[str],
) -> None:
    """Write samples and their features (m, D) in row groups, and `facts` as metadata; two of them are columns too."""
    import pyarrow as pa
    from pyarrow import parquet

    texts = {
        key: fact if isinstance(fact, str) else json.dumps(fact) for key, fact in facts.items()
    }
    with ExitStack() as stack:
        temporary, writer = stack.enter_context(atomic_write(path)), None
        for samples, features in groups:
            rows = [
                {
                    "name": sample.files[0],
                    **{label: getattr(sample, label) for label in LABELS.values()},
                    "present": ",".join(name for name in sample.modalities if name in modalities),
                    "split": facts["split"],
                    "return_pattern": facts["return_pattern"],
                }
                for sample in samples
            ]
            lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])
            table = pa.Table.from_pylist(rows, metadata=texts).append_column("feature", lists)
            if writer is None:
                writer = parquet.ParquetWriter(temporary, table.schema, use_dictionary=[*rows[0]])
                stack.enter_context(writer)
            writer.write_table(table)


def export_shards(
    cfg: CfgNode, arguments: argparse.Namespace, model: Model, samples: Sequence[Sample]
) -> None:
    """Write the features in shards, those alone that are not there yet. Each of several processes writes some of them."""
    folder, rows = arguments.output, arguments.shards
    origin = {
        **export_origin(cfg, arguments),
        "dtype": arguments.dtype,
        "rows": len(samples),
        "shard_rows": rows,
        "samples_sha256": samples_digest(samples),
    }
    shards = {
        f"shard-{number:05}{SUFFIX}": samples[start : start + rows]
        for number, start in enumerate(range(0, len(samples), rows))
    }
    advice = "run the export again; several nodes need a folder that they share"
    store = Store(folder, origin, advice, caption_of(cfg))
    settings = with_values(cfg, {"DATASETS.CACHE": "no"})  # every image is read once
    with ExitStack() as stack:
        if distributed.is_main():
            stack.enter_context(lock_file(folder / LOCK, f"The output {folder}"))
            begin(store, shards, arguments.overwrite)
        done = distributed.broadcast_from_main(lambda: store.shards)
        missing = [shard for shard in shards if shard not in done]
        local = missing[distributed.rank() :: distributed.world_size()]
        for shard in progress(local, "exporting", unit="shard"):
            loader = test_loader(settings, shards[shard])
            features = features_of(settings, arguments, model, loader)
            store.write(shard, features, columns_of(shards[shard], modalities_of(cfg)))
        distributed.all_gather_object(None)
        if distributed.is_main():
            store.shards = list(shards)
            # where a shard is missing, nodes do not share the folder
            width = store.features().width
            store.commit()
            print_lines(
                f"Wrote {count_of(len(missing), 'shard')} to {folder}, {len(done)} were there: "
                f"{count_of(len(samples), 'feature')} of {width} numbers, {arguments.dtype}"
            )


def begin(store: Store, shards: Mapping[str, Sequence[Sample]], overwrite: bool) -> None:
    """Begin a store, or continue one with the same origin, with those of its shards that are whole."""
    before = None if overwrite else open_store(store.folder, "choose another, or pass --overwrite")
    if before:
        check_origin(before, store.origin)
        for shard, samples in shards.items():
            try:
                rows = before.shape(shard)[0]
            except UserError:  # it is missing or damaged
                continue
            if rows == len(samples):
                store.shards.append(shard)
    store.commit()


def features_of(
    cfg: CfgNode,
    arguments: argparse.Namespace,
    model: Model,
    loader: DataLoader,
    total: int | None = None,
) -> np.ndarray:
    """`extract_features`, as they are written: (n, D)."""
    (patterns,) = extract_features(cfg, model, loader, total=total)
    features = patterns[arguments.return_pattern]
    features = normalise(cfg, features) if arguments.normalise else features
    converted = features.to(getattr(torch, arguments.dtype))
    if not converted.isfinite().all():
        raise UserError(
            f"Features are up to {features.abs().max():.3g}, more than {arguments.dtype} holds; pass --normalise, "
            "or --dtype float32."
        )
    return converted.numpy()


def modalities_of(cfg: CfgNode) -> set[str]:
    """The modalities of whose images features are."""
    return set(cfg.MODEL.MODALITIES) - missing_modalities(cfg.TEST.MISS)


def export_origin(cfg: CfgNode, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the features depend on, but for the images, as a file and shards record it."""
    origin = origin_of(cfg, arguments.return_pattern)
    sources = comparison_of(cfg, arguments.return_pattern).sources
    return {
        **origin,
        "split": arguments.split,
        "normalised": arguments.normalise and cfg.TEST.FEAT_NORM == "yes",
        "configuration": origin["configuration"]
        | {"TEST.MISS": cfg.TEST.MISS, "sources": list(sources)},
    }


def caption_of(cfg: CfgNode) -> dict[str, Any]:
    """What else a file and shards record."""
    return {"checkpoint": cfg.TEST.WEIGHT, "data_set": cfg.DATASETS.NAMES}
