"""The features of a split as an .npz file, as Parquet or in a table: what demo-sdtps export does (docs/search.md)."""

import argparse
import hashlib
import json
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError, with_values
from demo_sdtps.config.cli import count_text, print_lines
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.distances import present_modalities
from demo_sdtps.evaluation.extraction import Model, extract_features
from demo_sdtps.evaluation.protocol import normalise
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.exported import ExportedModel
from demo_sdtps.retrieval.engine import CHECK, LABEL_CHECK, check_place, make_rows, table_schema
from demo_sdtps.retrieval.features import encode_present
from demo_sdtps.retrieval.origin import check_origin, describe_features
from demo_sdtps.retrieval.ranking import LABELS
from demo_sdtps.retrieval.table import create_table, open_table
from demo_sdtps.runtime import distributed
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.runtime.files import atomic_write, check_output_file, lock_file
from demo_sdtps.runtime.progress import progress

ROW_GROUP = 8192  # rows of Parquet or of a table that are in memory at a time
ADVICE = "choose another place, or pass --overwrite"

COLUMNS = {
    "row": "int64",
    "name": "string",
    **{name.lower(): "string" for name in MODALITIES},
    **dict.fromkeys(LABELS.values(), "int64"),
    "present": "string",
    "split": "string",
    "return_pattern": "int64",
}
"""Arrow's types of the columns beside the features."""

Group = tuple[Sequence[int], Sequence[Sample], np.ndarray]
"""Numbers of samples, these, and their features (m, D), which are written together."""


def check_output(arguments: argparse.Namespace) -> None:
    """Choose the format by the output's ending, unless it is given. Raises `UserError` for an output that cannot be written."""
    endings = {".npz": "npz", ".parquet": "parquet"}
    arguments.format = arguments.format or endings.get(Path(arguments.output).suffix, "lance")
    if arguments.format == "npz" and arguments.dtype != "float32":
        raise UserError(
            f"Only tables and Parquet can be {arguments.dtype} (--dtype); give an output that is no .npz file."
        )
    if arguments.format == "lance":
        check_extra("A table", "search", {"lancedb": "lancedb"})
        check_place(arguments.output)
        return
    if arguments.format == "parquet":
        check_extra("--format parquet", "parquet", {"pyarrow": "pyarrow"})
    arguments.output = Path(arguments.output)
    check_output_file(arguments.output, f".{arguments.format}", arguments.overwrite)


def export_file(
    cfg: CfgNode, arguments: argparse.Namespace, model: Model, samples: Sequence[Sample]
) -> None:
    """Write the features of samples as an .npz file, or as Parquet, of which one group is in memory at a time."""
    output, is_parquet = arguments.output, arguments.format == "parquet"
    if is_parquet:
        check_names(samples)
    size, rows = ROW_GROUP if is_parquet else len(samples), range(len(samples))
    groups = extract_groups(cfg, arguments, model, samples, rows, size, together=True)
    if not distributed.is_main():
        deque(groups, maxlen=0)  # it computes its part of each
        return
    write = write_parquet if is_parquet else write_array
    with lock_file(output.with_name(f".{output.name}.lock"), f"The output {output}"):
        write(output, groups, describe_export(cfg, arguments), extracted_modalities(cfg))
    features = count_text(len(samples), "feature")
    print_lines(f"Wrote {features} in {arguments.dtype} to {output}")


def export_table(
    cfg: CfgNode, arguments: argparse.Namespace, model: Model, samples: Sequence[Sample]
) -> None:
    """Write the features of samples that a table lacks; each of several processes writes its part."""
    check_names(samples)
    facts, modalities = describe_export(cfg, arguments), extracted_modalities(cfg)
    width = feature_widths(model)[arguments.return_pattern]
    missing = distributed.broadcast_from_main(lambda: begin_table(arguments, facts, samples, width))
    table = open_table(arguments.output, ADVICE)
    assert table
    each = -(-len(missing) // distributed.world_size())
    share = missing[distributed.rank() * each : (distributed.rank() + 1) * each]
    for rows, group, features in extract_groups(cfg, arguments, model, samples, share, ROW_GROUP):
        table.put(sample_columns(rows, group, facts, modalities), features)
    distributed.all_gather_object(None)  # all have written
    if distributed.is_main():
        new, before = len(missing), len(samples) - len(missing)
        print_lines(
            f"Wrote {count_text(new, 'feature')} in {arguments.dtype} to {arguments.output}, {before} were there"
        )


def begin_table(
    arguments: argparse.Namespace, facts: dict[str, Any], samples: Sequence[Sample], width: int
) -> Sequence[int]:
    """Make the table, or continue one of the same origin; → the numbers of the samples that it lacks."""
    facts |= {"dtype": arguments.dtype, "rows": len(samples)}
    digest = hashlib.sha256()
    for sample in progress(samples, "looking at the files", unit="sample"):
        stamps = [(stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, sample.files)]
        digest.update(f"{sample!r} {stamps}\n".encode(errors="surrogatepass"))
    facts |= {"samples_sha256": digest.hexdigest()}
    table = None if arguments.overwrite else open_table(arguments.output, ADVICE)
    if not table:
        schema = table_schema(COLUMNS, width, arguments.dtype)
        create_table(arguments.output, facts, schema, ADVICE)
        return range(len(samples))
    check_origin(table.place, table.facts, facts, ADVICE)
    stored = table.read(names=["row"]).columns["row"]
    return np.setdiff1d(np.arange(len(samples)), stored).tolist()


def extract_groups(
    cfg: CfgNode,
    arguments: argparse.Namespace,
    model: Model,
    samples: Sequence[Sample],
    rows: Sequence[int],
    size: int,
    together: bool = False,
) -> Iterator[Group]:
    """The samples of some rows, and their features, in groups; `together` the processes share the work on each."""
    cfg = with_values(cfg, {"DATASETS.CACHE": "no"})  # every image is read once
    for start in progress(range(0, len(rows), size), "exporting", unit="group"):
        numbers = rows[start : start + size]
        group = [samples[row] for row in numbers]
        share = distributed.shard_for_rank(group) if together else group
        total = len(group) if together else None
        (patterns,) = extract_features(cfg, model, test_loader(cfg, share), total=total)
        features = patterns[arguments.return_pattern]
        features = normalise(cfg, features) if arguments.normalise else features
        converted = features.to(getattr(torch, arguments.dtype))
        if not converted.isfinite().all():
            raise UserError(
                f"Features are up to {features.abs().max():.3g}, more than {arguments.dtype} holds; pass --normalise, "
                "or --dtype float32."
            )
        yield numbers, group, converted.numpy()


def write_array(
    path: Path, groups: Iterable[Group], facts: Mapping[str, Any], modalities: Collection[str]
) -> None:
    """Write the only group, with features (n, D), as .npz, with `facts` as single values."""
    ((_, samples, features),) = groups
    arrays: dict[str, Any] = {**facts, "configuration": json.dumps(facts["configuration"])}
    for name, label in LABELS.items():
        arrays[name] = np.array([getattr(sample, label) for sample in samples], np.int64)
    arrays["present"] = encode_present(present_modalities(samples, modalities))
    arrays["paths"] = np.array([[path or "" for path in sample.paths] for sample in samples])
    # An open file, because numpy would add .npz to a name.
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, features=features, **arrays)


def write_parquet(
    path: Path, groups: Iterable[Group], facts: Mapping[str, Any], modalities: Collection[str]
) -> None:
    """Write each group as a row group, with `facts` as metadata; two of them are columns too."""
    from pyarrow import parquet

    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
    with ExitStack() as stack:
        temporary, writer = stack.enter_context(atomic_write(path)), None
        for rows, samples, features in groups:
            schema = table_schema(COLUMNS, features.shape[1], str(features.dtype))
            columns = sample_columns(rows, samples, facts, modalities)
            table = make_rows(schema.with_metadata(texts), columns, features)
            table = table.drop_columns([LABEL_CHECK, CHECK])
            if writer is None:
                writer = parquet.ParquetWriter(temporary, table.schema, use_dictionary=[*COLUMNS])
                stack.enter_context(writer)
            writer.write_table(table)


def sample_columns(
    rows: Sequence[int],
    samples: Sequence[Sample],
    facts: Mapping[str, Any],
    modalities: Collection[str],
) -> dict[str, list]:
    """The columns of samples, of these numbers in their split."""
    paths = [(*sample.paths, None, None)[: len(MODALITIES)] for sample in samples]
    return {
        "row": [*rows],
        "name": [sample.files[0] for sample in samples],
        **{name.lower(): [row[place] for row in paths] for place, name in enumerate(MODALITIES)},
        **{label: [getattr(sample, label) for sample in samples] for label in LABELS.values()},
        "present": [
            ",".join(name for name in sample.modalities if name in modalities) for sample in samples
        ],
        "split": [facts["split"]] * len(samples),
        "return_pattern": [facts["return_pattern"]] * len(samples),
    }


def feature_widths(model: Model) -> Mapping[int, int]:
    """D by return pattern."""
    if isinstance(model, ExportedModel):
        return model.widths
    patterns = model.layout.split(torch.empty(0, model.layout.width))
    return {pattern: features.shape[1] for pattern, features in patterns.items()}


def check_names(samples: Sequence[Sample]) -> None:
    """Raise `UserError` for names of files that tables cannot hold."""
    for name in (name for sample in samples for name in sample.files):
        if name.encode(errors="replace").decode() != name:
            raise UserError(
                f"The name {name!a} is not UTF-8, as Parquet and tables need; rename the file."
            )


def extracted_modalities(cfg: CfgNode) -> set[str]:
    """The modalities of whose images features are."""
    return set(cfg.MODEL.MODALITIES) - missing_modalities(cfg.TEST.MISS)


def describe_export(cfg: CfgNode, arguments: argparse.Namespace) -> dict[str, Any]:
    """What an export records: what the features depend on, but for the images, and where they are from."""
    facts = describe_features(cfg, arguments.return_pattern)
    facts["split"] = arguments.split
    facts["normalised"] = arguments.normalise and cfg.TEST.FEAT_NORM == "yes"
    facts["configuration"]["TEST.MISS"] = cfg.TEST.MISS
    return {"checkpoint": cfg.TEST.WEIGHT, "data_set": cfg.DATASETS.NAMES} | facts
