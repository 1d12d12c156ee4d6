"""Features and their columns in a Lance table, in a folder or in object storage: what a gallery's index and an export are.

A `Table` is written by `put` and `delete`, each of them one version; LanceDB commits versions atomically, keeps readers on
theirs, and merges what several processes write. `Rows` are one version as it is read. LanceDB does not check the data that it
reads, so two columns are checksums of each row, and other files have their own (engine.py), which all reading compares.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.distances import check_finite
from demo_sdtps.retrieval.blocks import READ_ELEMENTS, FeatureBlocks, Gallery, normalise_rows
from demo_sdtps.retrieval.columns import (
    CHECK,
    FEATURE,
    INTERNAL,
    LABEL_CHECK,
    label_checks,
    make_rows,
)
from demo_sdtps.retrieval.engine import (
    DELETIONS,
    TABLE,
    check_place,
    connect,
    damaged_files,
    engine_errors,
    engine_message,
    is_remote,
    is_version_lost,
    manifest,
    open_handle,
    record_files,
)
from demo_sdtps.retrieval.features import row_checks

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 3
ROW_ID = "_rowid"
BATCH = 4096  # rows that are in memory at a time
MOST_FRAGMENTS = 64  # files of few rows, before they are merged
KEPT = timedelta(days=1)  # by which readers of older versions have ended


@dataclass(frozen=True)
class Rows(Gallery):
    """One version of a table, or what a filter leaves of it: n rows in the order of the key."""

    columns: "pa.Table"

    def names(self, rows: np.ndarray) -> np.ndarray:
        """The names (…) of rows (…), None for row -1."""
        import pyarrow as pa

        places = pa.array(rows.ravel(), mask=rows.ravel() < 0)
        names = self.columns["name"].take(places).to_pylist()
        return np.array(names, object).reshape(rows.shape)


def parse_present(column: "pa.ChunkedArray") -> np.ndarray:
    """Which of MODALITIES are present, (n, 3) bool, by a column of texts such as RGB,TI."""
    kinds = column.combine_chunks().dictionary_encode()
    sets = [
        [name in text.split(",") for name in MODALITIES] for text in kinds.dictionary.to_pylist()
    ]
    return np.array(sets, bool).reshape(-1, len(MODALITIES))[kinds.indices.to_numpy()]


class Table:
    """The table of a place. `facts` is what its writer recorded when it was made, by name, such as `describe_features`.

    The first column is the key: a row for each value. `place` is as the user wrote it; `advice` ends the sentence on a table
    that cannot be used; `folder` is None in object storage.
    """

    def __init__(self, place: str | Path, handle: Any, advice: str):
        self.place, self.handle, self.advice = str(place), handle, advice
        self.folder = None if is_remote(place) else Path(place, f"{handle.name}.lance")
        self._check()
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

    def count(self) -> int:
        """n, of the newest version that this process knows."""
        with self.errors():
            return self.handle.count_rows()

    def put(self, columns: Any, features: np.ndarray) -> None:
        """Write rows, features (m, D) and the `labels` columns, in place of those with the same keys, as one version.
        Raises `NotFiniteError`."""
        check_finite(torch.from_numpy(features), f"features for {self.place}")
        with self.change():
            merge = self.handle.merge_insert(self.key).when_matched_update_all()
            merge.when_not_matched_insert_all().execute(make_rows(self.schema, columns, features))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete the rows of some keys."""
        with self.change():
            for start in range(0, len(keys), BATCH):
                quoted = ("'" + key.replace("'", "''") + "'" for key in keys[start : start + BATCH])
                self.handle.delete(f"{self.key} IN ({', '.join(quoted)})")

    def tidy(self) -> None:
        """Merge the files of many small changes, and remove those that no version of the last day has."""
        with self.change():
            if self.handle.stats()["fragment_stats"]["num_small_fragments"] > MOST_FRAGMENTS:
                self.handle.optimize(cleanup_older_than=KEPT)

    def read(
        self,
        where: str | None = None,
        names: Sequence[str] | None = None,
        normalise: bool = False,
    ) -> Rows:
        """The rows of the newest version, or those that `where`, a condition in SQL, leaves; later changes of the table do not
        reach them. `columns` are those of `names` (default: all), the key, name and present; with `normalise` features have
        length 1.

        Raises `UserError` for a wrong condition, one that leaves nothing, and damaged rows, here or when features are read.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        with self.errors():
            self.handle.checkout_latest()
            handle = open_handle(self.place, self.handle.name)
            handle.checkout(self.handle.version)
        self._check()
        chosen = None if where is None else self._filter(handle, where)
        labels, batches = self.labels, []
        kept = [
            name
            for name in labels
            if names is None or name in {*names, self.key, "name", "present"}
        ]
        with self.errors():
            query = handle.search().select([*labels, LABEL_CHECK]).with_row_id(True)
            for batch in query.to_batches(batch_size=BATCH):
                if not np.array_equal(label_checks(batch, labels), batch[LABEL_CHECK].to_numpy()):
                    raise self.damage()
                rows = batch[ROW_ID].to_numpy()
                is_kept = np.ones(len(rows), bool) if chosen is None else np.isin(rows, chosen)
                # a copy, as a column of a batch keeps the memory of all
                batches.append(batch.select([*kept, ROW_ID]).filter(pa.array(is_kept)))
            schema = pa.schema([*map(self.schema.field, kept), (ROW_ID, pa.uint64())])
            table = pa.Table.from_batches(batches, schema)
            stored = table[ROW_ID].to_numpy()
            order = pc.sort_indices(table[self.key]).to_numpy()
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        if where is not None and not len(order):
            raise UserError(
                f"The filter {where!r} leaves none of the rows of {self.place}; change it."
            )
        ids = stored[order]
        columns = table.drop_columns([ROW_ID]).take(order)
        ranks = None if self.key == "name" else pc.rank(columns["name"]).to_numpy()

        def decode(batch: "pa.RecordBatch | pa.Table", expected: np.ndarray) -> np.ndarray:
            """The features of a batch, a copy, as Arrow's memory cannot be written to."""
            features = np.asarray(pc.list_flatten(batch[FEATURE])).reshape(-1, self.width)
            is_same = np.array_equal(batch[ROW_ID].to_numpy(), expected)
            if not (is_same and np.array_equal(row_checks(features), batch[CHECK].to_numpy())):
                raise self.damage()
            features = features.astype(np.float32)
            check_finite(torch.from_numpy(features), f"features in {self.place}")
            return normalise_rows(features) if normalise else features

        def scan() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            query, start = handle.search().select([FEATURE, CHECK]).with_row_id(True), 0
            query = query if where is None else query.where(where)
            with self.errors():
                size = max(1, READ_ELEMENTS // self.width)
                for batch in query.to_batches(batch_size=size):
                    place = slice(start, start + len(batch))
                    yield row_of[place], decode(batch, stored[place])
                    start += len(batch)
            if start != len(stored):
                raise self.damage()

        def take(rows: np.ndarray) -> np.ndarray:
            order = ids[rows].argsort()
            expected = ids[rows][order]
            with self.errors():
                query = handle.take_row_ids(expected.tolist()).select([FEATURE, CHECK])
                return decode(query.with_row_id().to_arrow(), expected)[order.argsort()]

        features = FeatureBlocks(len(ids), self.width, scan, take, ranks)
        return Rows(features, parse_present(columns["present"]), columns)

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

    def _check(self) -> None:
        """Raise `UserError` where files of the version that this process knows are damaged, or a later one is lost."""
        version = self.handle.version
        damaged = damaged_files(self.folder, manifest(version), DELETIONS)
        if damaged or is_version_lost(self.folder, version):
            raise self.damage()

    def damage(self) -> UserError:
        return UserError(f"The table {self.place} is damaged; {self.advice}.")

    @contextmanager
    def change(self) -> Iterator[None]:
        """A change by the engine, whose files get checksums."""
        with self.errors():
            yield
            record_files(self.folder)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the engine as `UserError`."""
        with engine_errors(self.place, self.advice):
            yield


def open_table(place: str | Path, advice: str, name: str = TABLE) -> Table | None:
    """The table at a place, None where there is none. Raises `UserError` for an old index, other files, a table of another
    FORMAT, and a damaged one."""
    check_place(place)
    if not is_remote(place) and not Path(place).is_dir():
        return None
    with engine_errors(str(place), advice):
        try:
            table = Table(place, open_handle(str(place), name), advice)
        except ValueError as error:
            if "was not found" not in str(error):
                raise
            return None
    if (stored := table.facts.get("format")) != FORMAT:
        raise UserError(
            f"The table {place} is in format {stored} of another version, not {FORMAT}; {advice}."
        )
    return table


def create_table(
    place: str | Path,
    facts: Mapping[str, Any],
    schema: "pa.Schema",
    advice: str,
    batches: "Iterable[pa.Table]" = (),
    name: str = TABLE,
) -> Table:
    """A new table with what it records and these rows of `make_rows`, in place of the one that is there, at once, unless that
    is damaged; `schema` is one of `table_schema`."""
    import pyarrow as pa

    check_place(place)
    texts = {key: json.dumps(value) for key, value in {"format": FORMAT, **facts}.items()}
    with engine_errors(str(place), advice):
        schema = schema.with_metadata(texts)
        rows = (batch for table in batches for batch in table.to_batches())
        reader = pa.RecordBatchReader.from_batches(schema, rows)
        database, is_sound = connect(place), False
        if name in database.list_tables().tables:
            with suppress(UserError):
                is_sound = open_table(place, advice, name) is not None
            if not is_sound:
                database.drop_table(name)
        mode = "overwrite" if is_sound else "create"
        table = Table(place, database.create_table(name, reader, mode=mode), advice)
        record_files(table.folder)
    return table
