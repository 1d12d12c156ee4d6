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
from demo_sdtps.retrieval import engine
from demo_sdtps.retrieval.features import modality_mask, row_checks
from demo_sdtps.retrieval.nearest import READ_ELEMENTS, FeatureBlocks, Gallery, normalise_rows

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
    sets = [modality_mask(text.split(",")) for text in kinds.dictionary.to_pylist()]
    return np.array(sets, bool).reshape(-1, len(MODALITIES))[kinds.indices.to_numpy()]


class Table:
    """The table of a place. `facts` is what its writer recorded when it was made, by name, such as `describe_features`. The
    first of the `labels`, the columns but for features and checksums, is the `key`: a row for each value; `width` is D, the
    columns of a feature. `place` is as the user wrote it; `advice` ends the sentence on a table that cannot be used; `folder`
    is None in object storage."""

    def __init__(self, place: str | Path, handle: Any, advice: str):
        self.place, self.handle, self.advice = str(place), handle, advice
        self.folder = None if engine.is_remote(place) else Path(place, f"{handle.name}.lance")
        self._look()
        metadata = self.schema.metadata or {}
        self.facts = {key.decode(): json.loads(text) for key, text in metadata.items()}

    def count(self) -> int:
        """n, of the newest version that this process knows."""
        with self.errors():
            return self.handle.count_rows()

    def put(self, columns: Any, features: np.ndarray) -> None:
        """Write rows, features (m, D) and the `labels` columns, in place of those with their keys, as one version."""
        check_finite(torch.from_numpy(features), f"features for {self.place}")
        with self.change():
            merge = self.handle.merge_insert(self.key).when_matched_update_all()
            rows = engine.make_rows(self.schema, columns, features)
            merge.when_not_matched_insert_all().execute(rows)

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
        self, where: str | None = None, names: Sequence[str] | None = None, normalise: bool = False
    ) -> Rows:
        """The rows of the newest version, or those that `where`, a condition in SQL, leaves; later changes of the table do not
        reach them. `columns` are those of `names` (default: all), the key, name and present; with `normalise` features have
        length 1. Raises `UserError` for a wrong condition, one that leaves nothing, and damaged rows, here or later."""
        import pyarrow as pa
        import pyarrow.compute as pc

        with self.errors():
            self.handle.checkout_latest()
            handle = engine.connect(self.place).open_table(self.handle.name)
            handle.checkout(self.handle.version)
        self._look()
        chosen = None if where is None else self._filter(handle, where)
        labels, batches = self.labels, []
        chosen_names = {*labels} if names is None else {*names, self.key, "name", "present"}
        kept = [name for name in labels if name in chosen_names]
        with self.errors():
            query = handle.search().select([*labels, engine.LABEL_CHECK]).with_row_id(True)
            for batch in query.to_batches(batch_size=BATCH):
                checks = batch[engine.LABEL_CHECK].to_numpy()
                if not np.array_equal(engine.label_checks(batch, labels), checks):
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
        read = [engine.FEATURE, engine.CHECK]
        ranks = None if self.key == "name" else pc.rank(columns["name"]).to_numpy()

        def decode(batch: "pa.RecordBatch | pa.Table", expected: np.ndarray) -> np.ndarray:
            """The features of a batch, a copy, as Arrow's memory cannot be written to."""
            features = np.asarray(pc.list_flatten(batch[engine.FEATURE])).reshape(-1, self.width)
            is_same = np.array_equal(batch[ROW_ID].to_numpy(), expected)
            checks = batch[engine.CHECK].to_numpy()
            if not (is_same and np.array_equal(row_checks(features), checks)):
                raise self.damage()
            features = features.astype(np.float32)
            check_finite(torch.from_numpy(features), f"features in {self.place}")
            return normalise_rows(features) if normalise else features

        def scan() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            query, start = handle.search().select(read).with_row_id(True), 0
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
                query = handle.take_row_ids(expected.tolist()).select(read)
                return decode(query.with_row_id().to_arrow(), expected)[order.argsort()]

        features = FeatureBlocks(len(ids), self.width, scan, take, ranks)
        return Rows(features, parse_present(columns["present"]), columns)

    def _filter(self, handle: Any, where: str) -> np.ndarray:
        """The ids of the rows that a condition leaves."""
        try:
            query = handle.search().where(where).select([self.key]).with_row_id(True)
            return query.to_arrow()[ROW_ID].to_numpy()
        except ValueError as error:
            what = engine.engine_message(error).partition(". Valid fields")[0]
            columns = ", ".join(f"{name} ({self.schema.field(name).type})" for name in self.labels)
            raise UserError(
                f"The filter {where!r} cannot be used: {what}; the table {self.place} has the columns {columns}."
            ) from None

    def _look(self) -> None:
        """Columns of the version that this process knows. Raises `UserError` where files are damaged, or a later is lost."""
        version, self.schema = self.handle.version, self.handle.schema
        damaged = engine.damaged_files(self.folder, engine.manifest(version), engine.DELETIONS)
        if damaged or engine.is_version_lost(self.folder, version):
            raise self.damage()
        self.labels = [name for name in self.schema.names if name not in engine.INTERNAL]
        self.key, self.width = self.labels[0], self.schema.field(engine.FEATURE).type.list_size

    def damage(self) -> UserError:
        return UserError(f"The table {self.place} is damaged; {self.advice}.")

    @contextmanager
    def change(self) -> Iterator[None]:
        """A change by the engine, whose files get checksums."""
        with self.errors():
            yield
            engine.record_files(self.folder)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the engine as `UserError`."""
        with engine.engine_errors(self.place, self.advice):
            yield


def open_table(place: str | Path, advice: str, name: str = engine.TABLE) -> Table | None:
    """The table at a place, if any. Raises `UserError` for an old index, other files, another FORMAT, and a damaged one."""
    engine.check_place(place)
    if not engine.is_remote(place) and not Path(place).is_dir():
        return None
    with engine.engine_errors(str(place), advice):
        try:
            table = Table(place, engine.connect(place).open_table(name), advice)
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
    name: str = engine.TABLE,
) -> Table:
    """A new table with what it records and these rows of `make_rows`, in place of the one that is there, at once, unless that
    is damaged; `schema` is one of `table_schema`."""
    import pyarrow as pa

    engine.check_place(place)
    texts = {key: json.dumps(value) for key, value in {"format": FORMAT, **facts}.items()}
    with engine.engine_errors(str(place), advice):
        schema = schema.with_metadata(texts)
        rows = (batch for table in batches for batch in table.to_batches())
        reader = pa.RecordBatchReader.from_batches(schema, rows)
        database, is_sound = engine.connect(place), False
        if name in database.list_tables().tables:
            with suppress(UserError):
                is_sound = open_table(place, advice, name) is not None
            if not is_sound:
                database.drop_table(name)
        mode = "overwrite" if is_sound else "create"
        table = Table(place, database.create_table(name, reader, mode=mode), advice)
        engine.record_files(table.folder)
    return table
