"""Features and their columns in a Lance table, in a folder or in object storage: what a gallery's index and an export are.

A `Table` is written by `put` and `delete`, each of them one version; LanceDB commits versions atomically, keeps readers on
theirs, and merges what several processes write. `Rows` are one version as it is read. LanceDB does not check the data that it
reads, so two columns are checksums of each row, which all reading compares.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.runtime.progress import progress

if TYPE_CHECKING:
    import pyarrow as pa

TABLE, FORMAT = "features", 3
FEATURE, CHECK, LABEL_CHECK = "feature", "feature_check", "label_check"
INTERNAL = (FEATURE, CHECK, LABEL_CHECK)
ROW_ID = "_rowid"
BATCH = 4096  # rows that are in memory at a time
READ_AHEAD = 1 << 25  # bytes, in place of LanceDB's 2 GiB
READ_ELEMENTS = 1 << 23  # numbers of features in memory at a time, 4 bytes each
MOST_FRAGMENTS = 64  # files of few rows, before they are merged
KEPT = timedelta(days=1)  # by which readers of older versions have ended
OLD_FILES = {"store.json", ".store.json.part"}  # of an index or export of earlier versions

Take = Callable[[np.ndarray], np.ndarray]
"""Features (m, D) of the rows of ascending indices (m,)."""
Scan = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
"""All features in blocks, in any order: ascending indices (m,) of rows, and their features (m, D)."""


class FeatureBlocks:
    """Features (n, D) float32 that are read when they are asked for, by `scan` all and by `take` some. `rows` (n,) are their
    ascending indices, which those of a `view` keep; `name` is that of a view."""

    def __init__(self, count: int, width: int, scan: Scan, take: Take):
        self.rows, self.width, self.name = np.arange(count), width, ""
        self._count, self._scan, self._take = count, scan, take

    def view(
        self, rows: slice | np.ndarray, columns: Callable[[torch.Tensor], torch.Tensor], name: str
    ) -> "FeatureBlocks":
        """The features of some rows, by ascending indices (m,) or a slice, in the columns (m, d) that `columns` takes or
        computes of (m, D)."""

        def convert(features: np.ndarray) -> np.ndarray:
            return columns(torch.from_numpy(features)).numpy()

        view = copy(self)
        view.name, view.rows = name, self.rows[rows]
        view.width = columns(torch.empty(0, self.width)).shape[1]
        view._scan = lambda: ((places, convert(block)) for places, block in self._scan())
        view._take = lambda places: convert(self._take(places))
        return view

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, title: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All features, with a progress bar: indices (m,) and features (m, D). A small share of the rows is taken alone."""
        step = max(1, READ_ELEMENTS // self.width)
        with progress(total=len(self), desc=title, unit="row") as bar:
            if 8 * len(self) < self._count:
                for start in range(0, len(self), step):
                    rows = self.rows[start : start + step]
                    yield rows, self.take(rows)
                    bar.update(len(rows))
                return
            is_chosen = np.zeros(self._count, bool)
            is_chosen[self.rows] = True
            for rows, block in self._scan():
                chosen = is_chosen[rows]
                if not chosen.all():
                    rows, block = rows[chosen], block[chosen]
                if len(rows):
                    yield rows, block
                bar.update(len(rows))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The features (m, D) of the rows of ascending indices (m,)."""
        step = max(1, READ_ELEMENTS // self.width)
        features = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), step):
            features[start : start + step] = self._take(rows[start : start + step])
        return features


def array_blocks(features: np.ndarray) -> FeatureBlocks:
    """Features (n, D) in memory as blocks."""
    step = max(1, READ_ELEMENTS // features.shape[1])

    def scan() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(features), step):
            block = features[start : start + step]
            yield np.arange(start, start + len(block)), block

    return FeatureBlocks(len(features), features.shape[1], scan, features.__getitem__)


@dataclass(frozen=True)
class Gallery:
    """Features of n triplets, which of MODALITIES are `present` in each, (n, 3) bool, and their names."""

    features: FeatureBlocks
    present: np.ndarray
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.features)

    def take(self, rows: np.ndarray) -> torch.Tensor:
        """The features (m, D) float32 of the rows of ascending indices (m,)."""
        return torch.from_numpy(self.features.take(rows))


@dataclass(frozen=True)
class Rows:
    """One version of a table, or what a filter leaves of it: n rows in the order of the key. `columns` are all but the
    features, `ids` (n,) uint64 the engine's row ids."""

    columns: "pa.Table"
    ids: np.ndarray
    features: FeatureBlocks

    def __len__(self) -> int:
        return len(self.ids)

    def present(self) -> np.ndarray:
        """Which of MODALITIES are present in each row, (n, 3) bool."""
        texts = self.columns["present"].to_numpy()
        names, kind = np.unique(texts.astype(str), return_inverse=True)
        sets = [[name in text.split(",") for name in MODALITIES] for text in names.tolist()]
        return np.array(sets, bool).reshape(-1, len(MODALITIES))[kind]

    def gallery(self) -> Gallery:
        """What a search needs."""
        return Gallery(self.features, self.present(), Texts(self.columns["name"]))


class Texts(Sequence[str]):
    """A column of n texts, which stays in its compact form."""

    def __init__(self, column: Any):
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, row):
        return self.column[int(row)].as_py()

    def __iter__(self) -> Iterator[str]:
        return (text for chunk in self.column.chunks for text in chunk.to_pylist())


class Table:
    """The table of a place. `facts` is what its writer recorded when it was made, by name, such as `describe_origin`.

    The first column is the key: a row for each value. `place` is as the user wrote it; `advice` ends the sentence on a table
    that cannot be used.
    """

    def __init__(self, place: str | Path, handle: Any, advice: str):
        self.place, self.handle, self.advice = str(place), handle, advice
        metadata = handle.schema.metadata or {}
        self.facts = {key.decode(): json.loads(text) for key, text in metadata.items()}

    @property
    def schema(self) -> "pa.Schema":
        """Columns and their types."""
        return self.handle.schema

    @property
    def key(self) -> str:
        return self.schema.names[0]

    @property
    def labels(self) -> list[str]:
        """The columns but for features and checksums."""
        return [name for name in self.schema.names if name not in INTERNAL]

    @property
    def width(self) -> int:
        """D, the columns of a feature."""
        return self.schema.field(FEATURE).type.list_size

    @property
    def version(self) -> int:
        """Of the table as this process knows it."""
        return self.handle.version

    def count(self) -> int:
        """n, of the newest version that this process knows."""
        with self.errors():
            return self.handle.count_rows()

    def put(self, columns: Any, features: np.ndarray) -> None:
        """Write rows, features (m, D) and the `labels` columns, in place of those with the same keys, as one version."""
        with self.errors():
            merge = self.handle.merge_insert(self.key).when_matched_update_all()
            merge.when_not_matched_insert_all().execute(make_rows(self.schema, columns, features))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the rows of some keys."""
        with self.errors():
            for start in range(0, len(keys), BATCH):
                quoted = (quote(key) for key in keys[start : start + BATCH])
                self.handle.delete(f"{self.key} IN ({', '.join(quoted)})")

    def tidy(self) -> None:
        """Merge the files of many small changes, and remove those that no version of the last day has. What is merged is
        written anew, so a few are left as they are."""
        with self.errors():
            if self.handle.stats()["fragment_stats"]["num_small_fragments"] > MOST_FRAGMENTS:
                self.handle.optimize(cleanup_older_than=KEPT)

    def read(
        self,
        where: str | None = None,
        names: Sequence[str] | None = None,
        prepare: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> Rows:
        """The rows of the newest version, or those that `where`, a condition in SQL, leaves; later changes of the table do not
        reach them. `columns` are those of `names` (default: all), features what `prepare` makes of (m, D).

        Raises `UserError` for a wrong condition, one that leaves nothing, and damaged rows, here or when features are read.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        with self.errors():
            self.handle.checkout_latest()
            handle = open_handle(self.place)
            handle.checkout(self.handle.version)
        chosen = None if where is None else self._filter(handle, where)
        labels, batches = self.labels, []
        kept = [name for name in labels if names is None or name in {*names, self.key}]
        with self.errors():
            query = handle.search().select([*labels, LABEL_CHECK]).with_row_id(True)
            for batch in query.to_batches(batch_size=BATCH):
                if not np.array_equal(label_checks(batch, labels), batch[LABEL_CHECK].to_numpy()):
                    raise self.damage()
                batches.append(batch.select([*kept, ROW_ID]))
            schema = pa.schema([*map(self.schema.field, kept), (ROW_ID, pa.uint64())])
            table = pa.Table.from_batches(batches, schema)
            stored = table[ROW_ID].to_numpy()
            if chosen is not None:
                is_chosen = np.isin(stored, chosen)
                table, stored = table.filter(pa.array(is_chosen)), stored[is_chosen]
            order = pc.sort_indices(table[self.key]).to_numpy()
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        if where is not None and not len(order):
            raise UserError(
                f"The filter {where!r} leaves none of the rows of {self.place}; change it."
            )
        ids = stored[order]
        convert = prepare or (lambda features: features.astype(np.float32, copy=False))

        def decode(
            batch: "pa.RecordBatch | pa.Table", expected: np.ndarray, order: np.ndarray
        ) -> np.ndarray:
            """The features of a batch in another order, which copies them: Arrow's memory cannot be written to."""
            features = stored_features(batch, self.width)
            is_same = np.array_equal(batch[ROW_ID].to_numpy(), expected)
            if not (is_same and np.array_equal(feature_checks(features), batch[CHECK].to_numpy())):
                raise self.damage()
            return convert(features[order])

        def scan() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            query, start = handle.search().select([FEATURE, CHECK]).with_row_id(True), 0
            query = query if where is None else query.where(where)
            with self.errors():
                size = max(1, READ_ELEMENTS // self.width)
                for batch in query.to_batches(batch_size=size):
                    place = slice(start, start + len(batch))
                    ascending = row_of[place].argsort(kind="stable")
                    yield row_of[place][ascending], decode(batch, stored[place], ascending)
                    start += len(batch)
            if start != len(stored):
                raise self.damage()

        def take(rows: np.ndarray) -> np.ndarray:
            order = ids[rows].argsort()
            expected = ids[rows][order]
            with self.errors():
                query = handle.take_row_ids(expected.tolist()).select([FEATURE, CHECK])
                return decode(query.with_row_id().to_arrow(), expected, order.argsort())

        features = FeatureBlocks(len(ids), self.width, scan, take)
        return Rows(table.drop_columns([ROW_ID]).take(order), ids, features)

    def _filter(self, handle: Any, where: str) -> np.ndarray:
        """The ids of the rows that a condition leaves."""
        try:
            query = handle.search().where(where).select([self.key]).with_row_id(True)
            return query.to_arrow()[ROW_ID].to_numpy()
        except ValueError as error:
            what = engine_message(error).partition(". Valid fields")[0]
            columns = ", ".join(f"{name} ({self.schema.field(name).type})" for name in self.labels)
            raise UserError(
                f"The filter {where!r} cannot be used: {what}; the table {self.place} has the columns {columns}."
            ) from None

    def damage(self) -> UserError:
        return UserError(f"The table {self.place} is damaged; {self.advice}.")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the engine as `UserError`."""
        with engine_errors(self.place, self.advice):
            yield


def open_table(place: str | Path, advice: str) -> Table | None:
    """The table at a place, None where there is none. Raises `UserError` for an old index, other files, and a damaged table."""
    check_place(place)
    with engine_errors(str(place), advice):
        try:
            handle = open_handle(str(place)) if is_remote(place) or Path(place).is_dir() else None
        except ValueError as error:
            if "was not found" not in str(error):
                raise
            handle = None
    return None if handle is None else Table(place, handle, advice)


def create_table(
    place: str | Path,
    facts: Mapping[str, Any],
    schema: "pa.Schema",
    advice: str,
    batches: "Iterable[pa.Table]" = (),
) -> Table:
    """A new table with what it records and these rows of `make_rows`, in place of the one that is there, at once; `schema` is
    one of `table_schema`."""
    import pyarrow as pa

    check_place(place)
    texts = {key: json.dumps(value) for key, value in {"format": FORMAT, **facts}.items()}
    with engine_errors(str(place), advice):
        schema = schema.with_metadata(texts)
        rows = (batch for table in batches for batch in table.to_batches())
        reader = pa.RecordBatchReader.from_batches(schema, rows)
        database = connect(place)
        mode = "create"
        if TABLE in database.list_tables().tables:
            try:
                database.open_table(TABLE)
                mode = "overwrite"
            except (ValueError, RuntimeError, OSError):  # damaged
                database.drop_table(TABLE)
        handle = database.create_table(TABLE, reader, mode=mode)
    return Table(place, handle, advice)


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
    """Rows of a table, with their checksums: columns by name, values or Arrow's arrays, and features (m, D)."""
    import pyarrow as pa

    kind = schema.field(FEATURE).type
    features = np.ascontiguousarray(features, kind.value_type.to_pandas_dtype())
    labels = [name for name in schema.names if name not in INTERNAL]
    arrays = {}
    for name in labels:
        values, type_of = columns[name], schema.field(name).type
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        arrays[name] = (
            values.cast(type_of) if isinstance(values, pa.Array) else pa.array(values, type_of)
        )
    checks = label_checks(arrays, labels)
    arrays[LABEL_CHECK] = pa.array(checks, pa.uint32())
    arrays[CHECK] = pa.array(feature_checks(features), pa.uint64())
    arrays[FEATURE] = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), type=kind)
    return pa.table([arrays[name] for name in schema.names], schema=schema)


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


def feature_checks(features: np.ndarray) -> np.ndarray:
    """Checksums (n,) uint64 of the bits of features (n, D): the sum of their 8-byte words, each times an odd number, so that a
    change of one word is always told, and of several with a probability near 1."""
    pad = -features.shape[1] * features.itemsize % 8 // features.itemsize
    if pad:
        features = np.pad(features, ((0, 0), (0, pad)))
    words = np.ascontiguousarray(features).view(np.uint64)
    factors = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return words @ (factors | np.uint64(1)) + np.uint64(0x9E3779B97F4A7C15)


def stored_features(batch: Any, width: int) -> np.ndarray:
    """The features (m, D) of a batch, in the type that they are stored in."""
    column = batch[FEATURE]
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    return column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)


def quote(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


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
    os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(READ_AHEAD))
    os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")  # or it warns of them
    import lancedb

    # loading processes, which are forked, do not use it
    warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
    return lancedb.connect(str(place))


def open_handle(place: str) -> Any:
    """LanceDB's table at a place."""
    return connect(place).open_table(TABLE)


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
            what = f"cannot be reached: {unreachable}; docs/scaling.md names the variables to set"
        elif "onflict" in text or "TooMuchWriteContention" in text:
            what = f"was changed by another process meanwhile ({text}); run the command again"
        elif any(word in text for word in ("ermission", "Read-only", "No space")):
            what = f"cannot be written ({text}); free some space or choose another place"
        else:
            what = f"cannot be read or is damaged ({text}); {advice}"
        raise UserError(f"The table {place} {what}.") from None
