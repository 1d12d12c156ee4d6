"""The features of a split as an .npz file or as Parquet: what demo-sdtps export does (docs/search.md)."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError, with_values
from demo_sdtps.config.cli import count_text, print_lines
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.distances import names_present, present_modalities
from demo_sdtps.evaluation.extraction import Model, extract_features
from demo_sdtps.evaluation.protocol import normalise
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.retrieval.features import encode_present
from demo_sdtps.retrieval.gallery import as_text, describe_features
from demo_sdtps.runtime.files import atomic_write

LABELS = {"ids": "identity", "cams": "camera", "scenes": "scene"}
"""Attributes of samples by the names of their arrays in .npz files."""


def export_features(
    cfg: CfgNode, arguments: argparse.Namespace, model: Model, samples: Sequence[Sample]
) -> None:
    """Extract the features of samples, and write them to `arguments.output`, with what they depend on, but for the images, and
    where they are from. Raises `UserError` for features that --dtype does not hold."""
    cfg = with_values(cfg, {"DATASETS.CACHE": "no"})  # every image is read once
    (patterns,) = extract_features(cfg, model, test_loader(cfg, samples))
    features = patterns[arguments.return_pattern]
    features = normalise(cfg, features) if arguments.normalise else features
    converted = features.to(getattr(torch, arguments.dtype))
    if not converted.isfinite().all():
        raise UserError(
            f"Features are up to {features.abs().max():.3g}, more than {arguments.dtype} holds; pass --normalise, "
            "or --dtype float32."
        )
    facts = {"checkpoint": cfg.TEST.WEIGHT, "data_set": cfg.DATASETS.NAMES}
    facts |= describe_features(cfg, arguments.return_pattern) | {"split": arguments.split}
    facts["normalised"] = arguments.normalise and cfg.TEST.FEAT_NORM == "yes"
    facts["configuration"]["TEST.MISS"] = cfg.TEST.MISS
    modalities = set(cfg.MODEL.MODALITIES) - missing_modalities(cfg.TEST.MISS)
    write = write_parquet if arguments.output.suffix == ".parquet" else write_array
    with atomic_write(arguments.output) as temporary:
        present = present_modalities(samples, modalities)
        write(temporary, samples, converted.numpy(), present, facts)
    count = count_text(len(samples), "feature")
    print_lines(f"Wrote {count} in {arguments.dtype} to {arguments.output}")


def write_array(
    path: Path,
    samples: Sequence[Sample],
    features: np.ndarray,
    present: np.ndarray,
    facts: Mapping[str, Any],
) -> None:
    """Write features (n, D) of samples as .npz, what is `present` in them (n, 3) bool, and `facts` as single values."""
    arrays: dict[str, Any] = {**facts, "configuration": json.dumps(facts["configuration"])}
    for name, label in LABELS.items():
        arrays[name] = np.array([getattr(sample, label) for sample in samples], np.int64)
    arrays["present"] = encode_present(present)
    arrays["paths"] = np.array([[path or "" for path in sample.paths] for sample in samples])
    with open(path, "wb") as file:  # numpy would add .npz to a name
        np.savez(file, features=features, **arrays)


def write_parquet(
    path: Path,
    samples: Sequence[Sample],
    features: np.ndarray,
    present: np.ndarray,
    facts: Mapping[str, Any],
) -> None:
    """Write features (n, D) of samples as Parquet, what is `present` in them (n, 3) bool, and `facts` as metadata, of which two
    are columns too."""
    import pyarrow as pa
    from pyarrow import parquet

    paths = [[each and as_text(each) for each in (*one.paths, None, None)] for one in samples]
    columns: dict[str, Any] = {
        "row": np.arange(len(samples)),
        "name": [as_text(one.files[0]) for one in samples],
        # of the type of texts where all are missing, too
        **{
            name.lower(): pa.array([row[place] for row in paths], pa.string())
            for place, name in enumerate(MODALITIES)
        },
        **{label: [getattr(one, label) for one in samples] for label in LABELS.values()},
        "present": [",".join(names_present(row)) for row in present],
        "split": [facts["split"]] * len(samples),
        "return_pattern": [facts["return_pattern"]] * len(samples),
        "feature": pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1]),
    }
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
    parquet.write_table(pa.table(columns).replace_schema_metadata(texts), path)
