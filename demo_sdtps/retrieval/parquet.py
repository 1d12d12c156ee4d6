"""Features as one Parquet file, which databases load (docs/retrieval.md)."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from demo_sdtps.config import UserError
from demo_sdtps.datasets import Sample
from demo_sdtps.retrieval.feature_sets import LABELS
from demo_sdtps.runtime.files import atomic_write


def check_names(samples: Sequence[Sample]) -> None:
    """Raise `UserError` for a sample whose name is no text of Parquet."""
    for name in (sample.files[0] for sample in samples):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"The name {name!a} is not UTF-8, as Parquet needs; rename the file, or export .npz."
            ) from None


def write_parquet(
    path: Path,
    groups: Iterable[tuple[Sequence[Sample], np.ndarray]],
    facts: Mapping[str, Any],
    modalities: Collection[str],
) -> int:
    """Write a row group for each of `groups`, which are samples and their features (m, D): → D.

    The `facts` are the metadata, and among them the split and return pattern of all rows.
    """
    import pyarrow as pa
    from pyarrow import parquet

    metadata = {
        name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in facts.items()
    }
    width = 0
    with ExitStack() as stack:
        temporary, writer = stack.enter_context(atomic_write(path)), None
        for samples, features in groups:
            width = features.shape[1]
            lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width)
            columns = {
                "name": [sample.files[0] for sample in samples],
                **{
                    label: [getattr(sample, label) for sample in samples]
                    for label in LABELS.values()
                },
                "present": [
                    ",".join(name for name in sample.modalities if name in modalities)
                    for sample in samples
                ],
                "split": [facts["split"]] * len(samples),
                "return_pattern": [facts["return_pattern"]] * len(samples),
            }
            table = pa.table({**columns, "feature": lists}, metadata=metadata)
            if writer is None:
                writer = parquet.ParquetWriter(
                    temporary, table.schema, use_dictionary=list(columns)
                )
                stack.enter_context(writer)
            writer.write_table(table)
    return width
