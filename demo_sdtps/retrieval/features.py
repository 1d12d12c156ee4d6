"""Features of triplets with what is present in each, what features depend on, and the files of demo-sdtps export."""

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError, with_values
from demo_sdtps.config.common import WITHOUT_EFFECT, count_text, print_lines
from demo_sdtps.config.load import DEMO_SCHEMA, flatten
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.distances import make_comparison, names_present, present_modalities
from demo_sdtps.evaluation.protocol import Model, extract_features, normalise
from demo_sdtps.modeling.checkpoints.loading import weights_file
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.runtime.device import choose_device, choose_precision
from demo_sdtps.runtime.files import atomic_write, sha256

LABELS = {"ids": "identity", "cams": "camera", "scenes": "scene"}
"""Attributes of samples by the names of their arrays in .npz files."""
CODES = 2 ** np.arange(len(MODALITIES), dtype=np.uint8)
"""A set of modalities in files and in `Features.present`: the sum of 1 for RGB, 2 for NI and 4 for TI."""


def modality_mask(modalities: Collection[str]) -> np.ndarray:
    """Which of MODALITIES these are, (3,) bool."""
    return np.array([name in modalities for name in MODALITIES])


def encode_present(present: np.ndarray) -> np.ndarray:
    """The code (…) uint8 of each set of modalities (…, 3) bool."""
    return present @ CODES


def decode_present(codes: Any) -> np.ndarray:
    """Which modalities (…, 3) bool the sets of these codes (…) have."""
    return (np.asarray(codes)[..., None] & CODES) > 0


def as_matrix(values: Any) -> np.ndarray:
    """Features (n, D) float32 in the order of rows that torch needs, of an array, of `Features` or of a tensor, wherever it is
    and of whatever type. Raises `UserError` for what has no numbers of this shape."""
    try:
        is_tensor = hasattr(values, "detach")  # numpy has no bfloat16
        array = np.asarray(values.detach().cpu().float() if is_tensor else values)
        is_matrix = array.ndim == 2 and array.dtype.kind in "biuf"
    except (TypeError, ValueError):
        is_matrix = False
    if not is_matrix:
        raise UserError(
            "The features are no numbers of the shape (n, D); give what features(…) returns."
        )
    return np.ascontiguousarray(array, np.float32)


@dataclass(frozen=True, eq=False)
class Features:
    """Features of n triplets: the `values` (n, D) float32, and what is `present` in each, (n,) uint8: the sum of 1 for RGB, 2
    for NI and 4 for TI.

    Compute with `values`; `torch.tensor(features.values)` is a tensor, and numpy takes the whole as the array of its values.
    `features[rows]` are those of some rows, by a slice, a mask, indices or one index; `Features.concatenate` those of several.
    `Features(values, present)` states what is present in values of one's own. A gallery's arrays are read-only from its first
    search on, which keeps what it derives from them for the next. Raises `UserError` for other shapes and codes.
    """

    values: np.ndarray
    present: np.ndarray
    matrix: torch.Tensor = field(init=False, repr=False)  # `values`, of the same memory
    prepared: Any = field(default=None, init=False, repr=False)  # a `Gallery`, once searched

    def __post_init__(self) -> None:
        matrix, codes = torch.from_numpy(as_matrix(self.values).copy()), np.asarray(self.present)
        if codes.shape != matrix.shape[:1] or not np.isin(codes, range(CODES.sum() + 1)).all():
            raise UserError(
                f"What is present in features {tuple(matrix.shape)} has the shape {codes.shape} and the codes "
                f"{np.unique(codes)}; give the sum of 1 for RGB, 2 for NI and 4 for TI of each row."
            )
        present = codes.astype(np.uint8)
        vars(self).update(matrix=matrix, values=matrix.numpy(), present=present)

    def __reduce__(self) -> tuple:
        return Features, (self.values, self.present)  # not what a search derived

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D)."""
        return self.values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype, copy=copy)

    def __getitem__(self, rows: Any) -> "Features":
        rows = [rows] if isinstance(rows, (int, np.integer)) else rows
        return Features(self.values[rows], self.present[rows])

    @staticmethod
    def concatenate(features: "Sequence[Features]") -> "Features":
        """The rows of several, in their order."""
        columns = ([getattr(one, name) for one in features] for name in ("values", "present"))
        return Features(*map(np.concatenate, columns))


def describe_features(cfg: CfgNode, pattern: int) -> dict[str, Any]:
    """What features depend on: the content of the checkpoint, the return pattern, and the configuration, whose `sources` are
    the codes of the modalities (`encode_present`) of each of the equal parts of a feature."""
    path = weights_file(cfg.TEST.WEIGHT)
    # auto is another one on other hardware
    precision = choose_precision(cfg.TEST.AMP, choose_device(cfg))
    amp = cfg.TEST.AMP if cfg.TEST.AMP != "auto" else f"auto, {precision or 'float32'}"
    sources = make_comparison(cfg, pattern).sources
    codes = [int(encode_present(modality_mask(source))) for source in sources]
    return {
        # of OpenVINO's two files the one with the weights
        "checkpoint_sha256": sha256(path.with_suffix(".bin") if path.suffix == ".xml" else path),
        "return_pattern": pattern,
        "configuration": {**model_keys(cfg), "TEST.AMP": amp, "sources": codes},
    }


def model_keys(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys on which features depend, but for the precision."""
    values, rooms = flatten(cfg), ("MODEL.", "INPUT.")
    names = (name for name in DEMO_SCHEMA.by_name if name.startswith(rooms))
    keys = {name: values[name] for name in names if name not in WITHOUT_EFFECT}
    others = ("TEST.NECK_FEAT", "TEST.UNKNOWN_CAMERAS")
    return keys | {name: values[name] for name in others}


def as_text(name: str) -> str:
    """A file's name as a text of a table: bytes that are not UTF-8 are escaped."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


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
    """Write features (n, D) of samples as Parquet, what is `present` in them (n, 3) bool, and `facts` as metadata."""
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
