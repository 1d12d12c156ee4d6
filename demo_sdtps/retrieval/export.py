"""The features of a split as an .npz file, in shards or as Parquet: what demo-sdtps export does (docs/retrieval.md)."""

import argparse
import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import UserError, with_values
from demo_sdtps.config.cli import count_text, print_lines
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.distances import make_comparison
from demo_sdtps.evaluation.extraction import Model, extract_features
from demo_sdtps.evaluation.protocol import normalise
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.retrieval.feature_sets import LABELS, sample_labels, samples_digest
from demo_sdtps.retrieval.features import encode_present, modality_mask
from demo_sdtps.retrieval.origin import describe_origin
from demo_sdtps.retrieval.store import LOCK, Store, check_origin, check_store_folder, open_store
from demo_sdtps.runtime import distributed
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import atomic_write, check_output_file, lock_file
from demo_sdtps.runtime.progress import progress

ROW_GROUP = 8192
"""Rows of Parquet that are in memory at a time, as in a shard."""

Group = tuple[Sequence[Sample], np.ndarray]
"""Samples and their features (m, D), which are written together."""


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
    """Write the features of samples as an .npz file, or as Parquet, of which one group is in memory at a time."""
    is_parquet = arguments.format == "parquet"
    if is_parquet:
        check_names(samples)
    groups = extract_groups(
        cfg, arguments, model, split_groups(samples, ROW_GROUP if is_parquet else len(samples))
    )
    if not distributed.is_main():
        deque(groups, maxlen=0)  # it computes its part of each
        return
    origin, record = describe_export(cfg, arguments)
    write = write_parquet if is_parquet else write_array
    write(arguments.output, groups, record | origin, extracted_modalities(cfg))
    features = count_text(len(samples), "feature")
    print_lines(f"Wrote {features} in {arguments.dtype} to {arguments.output}")


def export_shards(
    cfg: CfgNode, arguments: argparse.Namespace, model: Model, samples: Sequence[Sample]
) -> None:
    """Write the features of samples in shards, those alone that are not there yet."""
    output, modalities = arguments.output, extracted_modalities(cfg)
    groups = {
        f"shard-{number:05}.safetensors": group
        for number, group in enumerate(split_groups(samples, arguments.shards))
    }
    with ExitStack() as stack:
        store = None
        if distributed.is_main():
            stack.enter_context(lock_file(output / LOCK, f"The output {output}"))
            origin, record = describe_export(cfg, arguments)
            origin |= {"dtype": arguments.dtype, "rows": len(samples)}
            origin |= {"shard_rows": arguments.shards, "samples_sha256": samples_digest(samples)}
            store = Store(output, origin, "run the export again", record)
            begin_shards(store, groups, arguments.overwrite)
        complete = distributed.broadcast_from_main(lambda: store.shards if store else [])
        missing = [shard for shard in groups if shard not in complete]
        extracted = extract_groups(cfg, arguments, model, [groups[shard] for shard in missing])
        for shard, (group, features) in zip(missing, extracted, strict=True):
            if store:
                paths = ["\0".join(path or "" for path in sample.paths) for sample in group]
                labels = sample_labels(group, modalities)
                store.write(shard, features, {**labels, "paths": paths})
        if store:
            store.shards = list(groups)
            store.commit()
            print_lines(
                f"Wrote {count_text(len(missing), 'shard')}, {len(complete)} were there: "
                f"{count_text(len(samples), 'feature')} in {arguments.dtype} in {output}"
            )


def begin_shards(store: Store, groups: Mapping[str, Sequence[Sample]], overwrite: bool) -> None:
    """Begin a store, or continue one with the same origin, with those of its shards that are whole."""
    before = None if overwrite else open_store(store.folder, "choose another, or pass --overwrite")
    if before:
        check_origin(before, store.origin)
        for shard, group in groups.items():
            with suppress(UserError):  # it is missing or damaged
                if before.shape(shard)[0] == len(group):
                    store.shards.append(shard)
    store.commit()


def split_groups(samples: Sequence[Sample], rows: int) -> list[Sequence[Sample]]:
    """The samples in groups of so many rows."""
    return [samples[start : start + rows] for start in range(0, len(samples), max(1, rows))]


def extract_groups(
    cfg: CfgNode,
    arguments: argparse.Namespace,
    model: Model,
    groups: Sequence[Sequence[Sample]],
) -> Iterator[Group]:
    """Groups of samples and their features, as they are written; processes share the work on each."""
    cfg = with_values(cfg, {"DATASETS.CACHE": "no"})  # every image is read once
    for group in progress(groups, "exporting", unit="group"):
        loader = test_loader(cfg, distributed.shard_for_rank(group))
        (patterns,) = extract_features(cfg, model, loader, total=len(group))
        features = patterns[arguments.return_pattern]
        features = normalise(cfg, features) if arguments.normalise else features
        converted = features.to(getattr(torch, arguments.dtype))
        if not converted.isfinite().all():
            raise UserError(
                f"Features are up to {features.abs().max():.3g}, more than {arguments.dtype} holds; pass --normalise, "
                "or --dtype float32."
            )
        yield group, converted.numpy()


def write_array(
    path: Path, groups: Iterable[Group], facts: Mapping[str, Any], modalities: Collection[str]
) -> None:
    """Write the only group of samples and features (n, D) as .npz, with `facts` as single values."""
    ((samples, features),) = groups
    arrays: dict[str, Any] = {**facts, **sample_labels(samples, modalities)}
    arrays["configuration"] = json.dumps(facts["configuration"])
    arrays["paths"] = np.array([[path or "" for path in sample.paths] for sample in samples])
    # An open file, because numpy would add .npz to a name.
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, features=features, **arrays)


def write_parquet(
    path: Path, groups: Iterable[Group], facts: Mapping[str, Any], modalities: Collection[str]
) -> None:
    """Write each group of samples and features (m, D) as a row group, with `facts` as metadata; two of them are columns too."""
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


def check_names(samples: Sequence[Sample]) -> None:
    """Raise `UserError` for names of files that Parquet cannot hold."""
    for name in (sample.files[0] for sample in samples):
        if name.encode(errors="replace").decode() != name:
            raise UserError(f"The name {name!a} is not UTF-8, as Parquet needs; rename the file.")


def extracted_modalities(cfg: CfgNode) -> set[str]:
    """The modalities of whose images features are."""
    return set(cfg.MODEL.MODALITIES) - missing_modalities(cfg.TEST.MISS)


def describe_export(
    cfg: CfgNode, arguments: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the features depend on, but for the images, and what else an export records."""
    origin = describe_origin(cfg, arguments.return_pattern)
    origin["split"] = arguments.split
    origin["normalised"] = arguments.normalise and cfg.TEST.FEAT_NORM == "yes"
    sources = make_comparison(cfg, arguments.return_pattern).sources
    codes = [int(encode_present(modality_mask(source))) for source in sources]
    origin["configuration"] |= {"TEST.MISS": cfg.TEST.MISS, "sources": codes}
    return origin, {"checkpoint": cfg.TEST.WEIGHT, "data_set": cfg.DATASETS.NAMES}
