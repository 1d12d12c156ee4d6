"""LanceDB at a place, a folder or an address of object storage: its errors as sentences, checksums of a table's files, and the
schema and checksums of its rows.

LanceDB checks nothing that it reads. Rows have checksums of their own; in object storage files have none of ours,
as what it stores is checked there.
"""

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from demo_sdtps.config import UserError
from demo_sdtps.retrieval.features import row_checks
from demo_sdtps.runtime.errors import check_extra

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = "features"
READ_AHEAD = 1 << 23  # bytes, in place of LanceDB's 2 GiB
CHECKSUMS = "checksums"
LINE = re.compile(rb"^([0-9a-f]{8})  ([\w./-]+)$", re.MULTILINE)
VERSIONS, DELETIONS, INDICES = "_versions", "_deletions", "_indices"
"""Folders of a table's files: what it consists of, which rows are deleted, and approximate indices."""
OLD_FILES = {"store.json", ".store.json.part"}  # of an index or export of earlier versions
FEATURE, CHECK, LABEL_CHECK = "feature", "feature_check", "label_check"
INTERNAL = (FEATURE, CHECK, LABEL_CHECK)
"""Columns beside those of the caller."""


def is_remote(place: str | Path) -> bool:
    """Whether a place is an address, such as s3://bucket/gallery, not a folder."""
    return "://" in str(place)


def check_place(place: str | Path) -> None:
    """Raise `UserError` for a folder that holds other files than a table."""
    folder = Path(place)
    if is_remote(place) or not folder.exists():
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if OLD_FILES & names:
        raise UserError(
            f"The folder {place} holds features as earlier versions stored them; delete it; it is made anew."
        )
    other = next(iter(sorted(names - {f"{TABLE}.lance"})), None)
    if not folder.is_dir() or (other and f"{TABLE}.lance" not in names):
        what = f"has other files such as {other}" if other else "is no folder"
        raise UserError(
            f"The output {place} {what}, so no features are stored there; choose another folder."
        )


def connect(place: str | Path) -> Any:
    """LanceDB's database at a place, whose scans read a bounded number of bytes ahead."""
    check_extra(f"The table {place}", "search", {"lancedb": "lancedb"})
    os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(READ_AHEAD))
    os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")  # or it warns of them
    import lancedb

    # loading processes, which are forked, do not use it
    warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
    return lancedb.connect(str(place))


def engine_message(error: BaseException) -> str:
    """What LanceDB says, in a line, without the place in its source."""
    text = " ".join(str(error).split()).partition(", /")[0]
    return text.removeprefix("Invalid input, ").removesuffix(".")


UNREACHABLE = {
    "BadScheme": "AWS_ALLOW_HTTP is not true, but the server's address begins with http:",
    "AWS credentials": "there are no credentials",
    "NoSuchBucket": "there is no such bucket",
    "AccessDenied": "the credentials do not suffice",
    "InvalidAccessKeyId": "the credentials are wrong",
    "SignatureDoesNotMatch": "the credentials are wrong",
    "ConnectError": "the server does not answer",
}
"""What is wrong with object storage, by words of its errors."""


@contextmanager
def engine_errors(place: str, advice: str) -> Iterator[None]:
    """Errors of LanceDB as `UserError`: a place that cannot be written, another process's change, or else damage."""
    try:
        yield
    except BaseException as error:
        is_engine = isinstance(error, (ValueError, RuntimeError, OSError))
        # what Rust raises on damaged data, not always as an Exception
        if isinstance(error, UserError) or not (is_engine or "Panic" in type(error).__name__):
            raise
        text = engine_message(error)
        unreachable = next((why for word, why in UNREACHABLE.items() if word in text), None)
        if unreachable:
            what = f"cannot be reached: {unreachable}; docs/search.md names the variables to set"
        elif any(
            word in text
            for word in ("onflict", "concurrent", "TooMuchWriteContention", "already exists")
        ):
            what = f"was changed by another process meanwhile ({text}); run the command again"
        elif any(word in text for word in ("ermission", "Read-only", "No space")):
            what = f"cannot be written ({text}); free some space or choose another place"
        else:
            what = f"cannot be read or is damaged ({text}); {advice}"
        raise UserError(f"The table {place} {what}.") from None


def record_files(folder: Path | None) -> None:
    """Add the files in a table's folder, None in object storage, that are not recorded yet, as one write. LanceDB renames
    complete files to their names, and changes none of them."""
    if folder is None:
        return
    recorded = {name for _, name in _recorded(folder)}
    lines = []
    for kind in (VERSIONS, DELETIONS, INDICES):
        for path in (folder / kind).rglob("*.*"):
            name = path.relative_to(folder).as_posix().encode()
            is_complete = path.suffix != ".json" and "#" not in path.name and path.name[0] != "."
            if is_complete and name not in recorded:
                with suppress(FileNotFoundError):  # another process removes old files
                    lines.append(b"%08x  %s" % (crc32(path.read_bytes()), name))
    if lines:
        with open(folder / CHECKSUMS, "ab", buffering=0) as file:
            # after the rest of a line that a full disk cut off
            file.write(b"\n".join([b"", *lines, b""]))


def damaged_files(folder: Path | None, *kinds: str) -> list[Path]:
    """The files in some folders of a table that differ from what is recorded of them; a kind may be a file itself."""
    if folder is None:
        return []
    damaged = []
    for checksum, name in _recorded(folder):
        path = folder / name.decode(errors="replace")
        if name.startswith(tuple(kind.encode() for kind in kinds)):
            with suppress(FileNotFoundError):  # of a version that is gone
                if crc32(path.read_bytes()) != checksum:
                    damaged.append(path)
    return damaged


def is_version_lost(folder: Path | None, version: int) -> bool:
    """Whether a version of a table after this one is recorded, but gone; LanceDB reads the one before it then."""
    newer = [] if folder is None else [name.decode() for _, name in _recorded(folder)]
    newer = [name for name in newer if f"{VERSIONS}/" <= name < manifest(version)]
    return any(not Path(folder or "", name).exists() for name in newer)


def manifest(version: int) -> str:
    """The name of the file that says what a version of a table consists of."""
    return f"{VERSIONS}/{2**64 - 1 - version:020}.manifest"


def _recorded(folder: Path) -> Iterator[tuple[int, bytes]]:
    """Checksums and names, without lines that are damaged."""
    path = folder / CHECKSUMS
    for checksum, name in LINE.findall(path.read_bytes() if path.exists() else b""):
        yield int(checksum, 16), name


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
