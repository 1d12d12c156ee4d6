"""Stored features, read block by block: an .npz file or a table of demo-sdtps export, or a gallery's index."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from demo_sdtps.config import UserError
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.evaluation.distances import check_finite, present_modalities
from demo_sdtps.retrieval.blocks import Gallery, array_blocks, normalise_rows
from demo_sdtps.retrieval.features import decode_present, encode_present
from demo_sdtps.retrieval.table import open_table
from demo_sdtps.runtime.progress import progress

if TYPE_CHECKING:
    import pyarrow as pa

LABELS = {"ids": "identity", "cams": "camera", "scenes": "scene"}
"""Attributes of samples by the names of their arrays."""
SETTINGS = ("checkpoint_sha256", "return_pattern", "normalised", "data_set", "configuration")
"""What an export records of its features' origin, in the order in which two exports are compared."""


@dataclass(frozen=True)
class FeatureSet(Gallery):
    """Features of n samples in blocks of float32; `ids`, `cams` and `scenes` (n,) int64, `names` the first file of each sample,
    texts or, of a table, Arrow's, `settings` the values of SETTINGS."""

    place: str | Path
    settings: Mapping[str, Any]
    ids: np.ndarray
    cams: np.ndarray
    scenes: np.ndarray
    names: Sequence[Any]


def sample_labels(samples: Sequence[Sample], modalities: Collection[str]) -> dict[str, np.ndarray]:
    """Labels of samples, each int64 (n,), and which of the `modalities` are present, uint8 (n,)."""
    labels = {
        name: np.array([getattr(sample, label) for sample in samples], np.int64)
        for name, label in LABELS.items()
    }
    return {**labels, "present": encode_present(present_modalities(samples, modalities))}


def samples_digest(samples: Sequence[Sample]) -> str:
    """Digest of the samples in their order: paths, labels, and sizes and times of modification of the files."""
    digest = hashlib.sha256()
    for sample in progress(samples, "looking at the files", unit="sample"):
        stamps = [(stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, sample.files)]
        digest.update(f"{sample!r} {stamps}\n".encode(errors="surrogatepass"))
    return digest.hexdigest()


def open_features(
    place: str | Path, normalise: bool = True, where: str | None = None
) -> FeatureSet:
    """The features of a file or table, L2-normalised with `normalise`; of a table the rows that `where`, a condition in SQL,
    leaves.

    Labels and names are read; features of a table stay in it.
    """

    if Path(place).suffix in (".npz", ".parquet") and not Path(place).is_dir():
        if where is not None:
            raise UserError(f"--where needs a table, but {place} is a file; export to a table.")
        array, labels, names, facts = _read_file(Path(place))
        check_finite(torch.from_numpy(array), f"features in {place}")
        ranks = np.unique(names, return_inverse=True)[1]
        features = array_blocks(normalise_rows(array) if normalise else array, ranks)
        present = decode_present(labels.pop("present"))
    else:
        table = open_table(place, "run the export again, with --overwrite if it refuses")
        if table is None:
            raise UserError(
                f"The features {place} do not exist; give an .npz file or a table that demo-sdtps export wrote."
            )
        facts = table.facts
        if table.count() != facts.get("rows", table.count()):
            raise UserError(f"The export in {place} is not complete; run its command again.")
        rows = table.read(where, [*LABELS.values()], normalise)
        features, present, names = rows.features, rows.present, rows.columns["name"]
        labels = {name: _numbers(rows.columns, label) for name, label in LABELS.items()}
    settings = {name: facts[name] for name in SETTINGS}
    return FeatureSet(features, present, place, settings, **labels, names=names)


def _numbers(columns: "pa.Table", label: str) -> np.ndarray:
    """A column of whole numbers (n,) int64; UNKNOWN where there is none."""
    if label not in columns.column_names or str(columns[label].type) != "int64":
        return np.full(len(columns), UNKNOWN)
    return columns[label].fill_null(UNKNOWN).to_numpy().copy()


def _read_file(
    path: Path,
) -> tuple[np.ndarray, dict[str, np.ndarray], Sequence[str], dict[str, Any]]:
    """Features (n, D), labels and `present`, first paths and recorded values of an .npz file."""
    if path.suffix == ".parquet":
        raise UserError(
            f"The file {path} is Parquet, which databases read; give an .npz file or a table."
        )
    try:
        with np.load(path) as content:
            features, paths = content["features"].astype(np.float32), content["paths"]
            labels = {name: content[name].astype(np.int64, casting="safe") for name in LABELS}
            labels["present"] = content["present"]
            settings = {name: content[name].item() for name in SETTINGS}
            settings["configuration"] = json.loads(settings["configuration"])
    except FileNotFoundError:
        raise UserError(
            f"The features {path} do not exist; give a file or folder that demo-sdtps export wrote."
        ) from None
    except MemoryError:
        raise
    except Exception:  # a damaged archive raises many types
        raise UserError(
            f"The file {path} is damaged, or not of this version's demo-sdtps export; export it again."
        ) from None
    return features, labels, [next(filter(None, row)) for row in paths.tolist()], settings
