"""The columns of a table of features, and the checksums of its rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from demo_sdtps.retrieval.features import row_checks

if TYPE_CHECKING:
    import pyarrow as pa

FEATURE, CHECK, LABEL_CHECK = "feature", "feature_check", "label_check"
INTERNAL = (FEATURE, CHECK, LABEL_CHECK)


def table_schema(columns: Mapping[str, Any], width: int, dtype: str = "float32") -> "pa.Schema":
    """The schema of a table of these columns, Arrow's types by name, the key first, and of features of so many numbers."""
    import pyarrow as pa

    key, *others = columns.items()
    primary = {"lance-schema:unenforced-primary-key:position": "1"}
    return pa.schema(
        [
            pa.field(*key, nullable=False, metadata=primary),
            *(pa.field(*column) for column in others),
            pa.field(LABEL_CHECK, pa.uint32()),
            pa.field(CHECK, pa.uint64()),
            pa.field(FEATURE, pa.list_(getattr(pa, dtype)(), width)),
        ]
    )


def make_rows(schema: "pa.Schema", columns: Any, features: np.ndarray) -> "pa.Table":
    """Rows of a table, with their checksums: columns by name, lists or Arrow's arrays, and features (m, D)."""
    import pyarrow as pa

    fields, kind = [f for f in schema if f.name not in INTERNAL], schema.field(FEATURE).type
    texts = {field.name: columns[field.name] for field in fields}
    labels = pa.RecordBatch.from_pydict(texts, pa.schema(fields))
    features = np.ascontiguousarray(features, kind.value_type.to_pandas_dtype())
    arrays = dict(zip(labels.schema.names, labels.columns, strict=True))
    arrays[LABEL_CHECK] = label_checks(labels, labels.schema.names)
    arrays[CHECK] = row_checks(features)
    arrays[FEATURE] = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), type=kind)
    return pa.Table.from_pydict(arrays, schema)


def label_checks(columns: Any, names: Sequence[str]) -> np.ndarray:
    """CRC-32 (n,) uint32 of the columns of each row as text; a missing value differs from any text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = []
    for name in names:
        column = columns[name]
        column = column.view(pa.int64()) if pa.types.is_floating(column.type) else column
        texts.append(pc.fill_null(column.cast(pa.large_string()), "\1"))
    joined = pc.binary_join_element_wise(*texts, pa.scalar("\0", pa.large_string()))
    return np.fromiter(
        (crc32(text) for text in joined.cast(pa.large_binary()).to_pylist()), np.uint32, len(joined)
    )
