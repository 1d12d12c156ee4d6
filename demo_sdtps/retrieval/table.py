"""A gallery's features and labels in a table of LanceDB, in a folder or at an address of object storage (docs/search.md).

A row is a triplet, whose `name` is the key. LanceDB commits each change as a version, atomically, keeps readers on theirs, and
merges what several processes write, or refuses it.
"""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.distances import check_finite
from demo_sdtps.retrieval.features import modality_mask
from demo_sdtps.retrieval.nearest import Gallery
from demo_sdtps.runtime.errors import check_extra

if TYPE_CHECKING:
    import pyarrow as pa

TABLE, FEATURE, ROW_ID = "features", "feature", "_rowid"
FORMAT = 4
BATCH = 4096  # rows that are written or deleted at a time
MOST_FRAGMENTS = 64  # files of few rows, before they are merged
KEPT = timedelta(days=1)  # by which readers of older versions have ended
REBUILD = "pass --rebuild to make it anew, or --index another folder"
UNREACHABLE = ("BadScheme", "credentials", "NoSuchBucket", "Access", "Signature", "ConnectError")
CHANGED = ("onflict", "concurrent", "TooMuchWriteContention", "already exists")
"""Words of LanceDB's errors on object storage that cannot be reached, and on a table that another process writes."""


@dataclass(frozen=True)
class Rows(Gallery):
    """One version of a table, or what a filter leaves of it: n triplets in the order of their names. `columns` are Arrow's, and
    `features` a table of LanceDB, which later changes do not reach, from which `take` reads rows by their `ids` (n,)."""

    table: "Table"
    columns: "pa.Table"
    ids: np.ndarray

    def names(self, rows: np.ndarray) -> np.ndarray:
        """The names (…) of rows (…), None for row -1."""
        import pyarrow as pa

        places = pa.array(rows.ravel(), mask=rows.ravel() < 0)
        names = self.columns["name"].take(places).to_pylist()
        return np.array(names, object).reshape(rows.shape)

    def reading_order(self) -> np.ndarray:
        """All rows (n,) in the order in which they are stored."""
        return self.ids.argsort()

    def take(self, rows: np.ndarray) -> torch.Tensor:
        """The features (m, D) float32 of distinct rows (m,)."""
        ids = self.ids[rows]
        with engine_errors(self.table.place):
            query = self.features.take_row_ids(ids.tolist()).select([FEATURE])
            batch = query.with_row_id().to_arrow()  # in any order
        stored = np.asarray(batch[FEATURE].combine_chunks().flatten()).reshape(len(rows), -1)
        features = np.empty_like(stored)
        features[ids.argsort()] = stored[batch[ROW_ID].to_numpy().argsort()]
        return torch.from_numpy(features)


class Table:
    """The table at a `place`. `facts` is what its writer recorded when it was made, by name, such as `describe_features`;
    `labels` are Arrow's types of its columns but for the features, by name, and `width` is D."""

    def __init__(self, place: str | Path, handle: Any):
        self.place, self.handle, self.schema = str(place), handle, handle.schema
        metadata = self.schema.metadata or {}
        self.facts = {key.decode(): json.loads(text) for key, text in metadata.items()}
        self.labels = {field.name: field.type for field in self.schema if field.name != FEATURE}
        self.width = self.schema.field(FEATURE).type.list_size

    def put(self, columns: Mapping[str, Any], features: np.ndarray) -> None:
        """Write rows, the `labels` by name, lists or Arrow's arrays, and features (m, D) float32, in place of those with their
        names, as one version. Raises `NotFiniteError` for features that are not finite."""
        import pyarrow as pa

        check_finite(torch.from_numpy(features), f"features for {self.place}")
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), self.width)
        rows = pa.Table.from_pydict({**columns, FEATURE: lists}, self.schema)
        with engine_errors(self.place):
            merge = self.handle.merge_insert("name").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(rows)

    def delete(self, names: Sequence[str]) -> None:
        """Delete the rows of some names."""
        with engine_errors(self.place):
            for start in range(0, len(names), BATCH):
                chosen = names[start : start + BATCH]
                quoted = ("'" + name.replace("'", "''") + "'" for name in chosen)
                self.handle.delete(f"name IN ({', '.join(quoted)})")

    def tidy(self) -> None:
        """Merge the files of many small changes, and remove those that no version of the last day has."""
        with engine_errors(self.place):
            if self.handle.stats()["fragment_stats"]["num_small_fragments"] > MOST_FRAGMENTS:
                self.handle.optimize(cleanup_older_than=KEPT)

    def read(self, where: str | None = None, names: Sequence[str] = ("name", "present")) -> Rows:
        """The rows of the newest version, or those that `where`, a condition in SQL, leaves, with the columns of `names`; later
        changes do not reach them. Raises `UserError` for a wrong condition, and for one that leaves nothing."""
        with engine_errors(self.place):
            features = connect(self.place).open_table(TABLE)
        query = features.search().select([*names]).with_row_id(True)
        try:
            # LanceDB drops what follows a whole condition, but not inside parentheses
            table = (query if where is None else query.where(f"({where})")).to_arrow()
        except ValueError as error:
            raise UserError(f"The filter {where!r} cannot be used: {message(error)}.") from None
        if where is not None and not len(table):
            raise UserError(f"The filter {where!r} leaves none of the rows of {self.place}.")
        columns = table.sort_by("name")
        texts = columns["present"].combine_chunks().dictionary_encode()
        sets = [modality_mask(text.split(",")) for text in texts.dictionary.to_pylist()]
        present = np.array(sets, bool).reshape(-1, len(MODALITIES))[texts.indices.to_numpy()]
        return Rows(features, present, self, columns, columns[ROW_ID].to_numpy())


def open_table(place: str | Path) -> Table | None:
    """The table at a place, if any. Raises `UserError` for one of another FORMAT, and for one that cannot be read."""
    if "://" not in str(place) and not Path(place).exists():  # or LanceDB makes a folder
        return None
    with engine_errors(place):
        database = connect(place)
        is_there = TABLE in database.list_tables().tables
        table = Table(place, database.open_table(TABLE)) if is_there else None
    if table and table.facts.get("format") != FORMAT:
        raise UserError(f"The table {place} is of another version of demo-sdtps; {REBUILD}.")
    return table


def create_table(
    place: str | Path,
    facts: Mapping[str, Any],
    columns: Mapping[str, Any],
    width: int,
    replace: bool = False,
) -> Table:
    """A new table with what it records, these columns, Arrow's types by name, the name first, and features of `width` numbers;
    with `replace` in place of the one that is there, if any, whatever is in it."""
    import pyarrow as pa

    texts = {key: json.dumps(value) for key, value in {"format": FORMAT, **facts}.items()}
    fields = [*columns.items(), (FEATURE, pa.list_(pa.float32(), width))]
    key = pa.field(*fields[0], False, {"lance-schema:unenforced-primary-key:position": "1"})
    schema = pa.schema([key, *fields[1:]], texts)
    with engine_errors(place):
        database = connect(place)
        if replace:
            database.drop_table(TABLE, ignore_missing=True)
        return Table(place, database.create_table(TABLE, schema=schema))


def connect(place: str | Path) -> Any:
    """LanceDB's database at a place."""
    check_extra(f"The table {place}", "search", {"lancedb": "lancedb"})
    os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")  # or it warns of them
    import lancedb

    # loading processes, which are forked, do not use it
    warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
    return lancedb.connect(str(place))


def message(error: BaseException) -> str:
    """What LanceDB says, in a line, without the place in its source."""
    text = " ".join(str(error).split()).partition(", /")[0]
    return text.removeprefix("Invalid input, ").removesuffix(".")


@contextmanager
def engine_errors(place: str | Path) -> Iterator[None]:
    """Errors of LanceDB as `UserError`."""
    try:
        yield
    except (ValueError, RuntimeError, OSError) as error:
        text = message(error)
        what = f"cannot be read ({text}); {REBUILD}"
        if any(word in text for word in UNREACHABLE):
            what = f"cannot be reached ({text}); docs/search.md names the variables to set"
        elif any(word in text for word in CHANGED):
            what = f"was changed by another process meanwhile ({text}); run the command again"
        raise UserError(f"The table {place} {what}.") from None
