"""A gallery's features and labels in a table of LanceDB, in a folder or at an address of object storage (docs/search.md).

A row is a triplet, with its `name` as key. LanceDB commits a change atomically, and merges or refuses what others write.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
import torch

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.distances import Side, check_finite
from demo_sdtps.retrieval.features import modality_mask

if TYPE_CHECKING:
    import pyarrow as pa

TABLE, FEATURE = "features", "feature"
QUOTED = re.compile("'[^']*'|\"[^\"]*\"|`[^`]*`")  # texts and names in SQL
BATCH = 4096  # rows that are written or deleted at a time
MOST_FRAGMENTS = 64  # files of few rows, before they are merged
KEPT = timedelta(days=1)  # by which readers of older versions have ended
REBUILD = "pass --rebuild to make it anew, or --index another folder"
UNREACHABLE = ("BadScheme", "credentials", "NoSuchBucket", "Access", "Signature", "ConnectError")
CHANGED = ("onflict", "concurrent", "TooMuchWriteContention", "already exists")
"""Words of LanceDB's errors on object storage that cannot be reached, and on a table that another process writes."""


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

    def read(
        self, where: str | None = None, names: Sequence[str] = ("name", "present", FEATURE)
    ) -> "pa.Table":
        """The rows in the order of their names, or those that `where`, a condition in SQL, leaves, with the columns of `names`.
        Raises `UserError` for a wrong condition, and for one that leaves nothing."""
        query = self.handle.search().select([*names])
        with engine_errors(self.place, where):
            rows = (query if where is None else query.where(condition(where))).to_arrow()
        if where is not None and not len(rows):
            raise UserError(
                f"The filter {where!r} leaves none of the rows of {self.place} ({self.count_lacking(where)} without a label "
                "that it names); correct it, or give labels by --pattern or a table."
            )
        return rows.sort_by("name")

    def count_lacking(self, where: str) -> int:
        """How many rows lack a label of a condition in SQL. Raises `UserError` for a wrong one."""
        with engine_errors(self.place, where):
            return int(self.handle.count_rows(f"({condition(where)} IS NULL)"))

    def side(self, where: str | None = None) -> "tuple[np.ndarray, Side]":
        """The names (n,) of the rows of `read`, and their features (n, D) float32 with what is present in each."""
        rows = self.read(where)
        features = np.asarray(rows[FEATURE].combine_chunks().flatten()).reshape(-1, self.width)
        sets = [modality_mask(text.split(",")) for text in rows["present"].to_pylist()]
        present = np.array(sets, bool).reshape(-1, len(MODALITIES))
        return np.array(rows["name"].to_pylist(), object), (torch.tensor(features), present)


def open_table(place: str | Path) -> Table | None:
    """The table at a place, if any. Raises `UserError` for one that cannot be read."""
    if "://" not in str(place) and not Path(place).exists():  # or LanceDB makes a folder
        return None
    with engine_errors(place):
        database = connect(place)
        is_there = TABLE in database.list_tables().tables
        return Table(place, database.open_table(TABLE)) if is_there else None


def create_table(
    place: str | Path,
    facts: Mapping[str, Any],
    columns: Mapping[str, Any],
    width: int,
    replace: bool = False,
) -> Table:
    """A new table with what it records, these columns, Arrow's types by name, the name first, and features of `width` numbers;
    with `replace` in place of the one that is there, if any. Raises `UserError` for names that LanceDB does not take."""
    import pyarrow as pa

    for name in columns:
        if re.search(r"^\*?$|^_row|[.`]", name):  # of which some are the engine's own
            raise UserError(f"The table {place} can have no column {name!r}; rename the label.")
    texts = {key: json.dumps(value) for key, value in facts.items()}
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
    os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")  # or it warns of them
    import lancedb

    # loading processes, which are forked, do not use it
    warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
    return lancedb.connect(str(place))


def condition(where: str) -> str:
    """A condition in SQL within parentheses, where LanceDB does not drop what follows a whole one. Raises `UserError` for one
    that closes them."""
    depths = accumulate((sign == "(") - (sign == ")") for sign in QUOTED.sub("", where))
    if min(depths, default=0) < 0:
        raise UserError(f"The filter {where!r} has a ) without its (; correct it.")
    return f"({normalize('NFC', where)})"


def message(error: BaseException) -> str:
    """What LanceDB says, in a line, without the place in its source."""
    text = " ".join(str(error).split()).partition(", /")[0]
    return text.removeprefix("Invalid input, ").removesuffix(".")


@contextmanager
def engine_errors(place: str | Path, where: str | None = None) -> Iterator[None]:
    """Errors of LanceDB as `UserError`; with the condition `where` they are of it, but for those of files."""
    try:
        yield
    except (ValueError, RuntimeError, OSError) as error:
        text = message(error)
        if where is not None and "(IO)" not in text:
            raise UserError(f"The filter {where!r} cannot be used: {text}.") from None
        what = f"cannot be read ({text}); {REBUILD}"
        if any(word in text for word in UNREACHABLE):
            what = f"cannot be reached ({text}); docs/search.md names the variables to set"
        elif any(word in text for word in CHANGED):
            what = f"was changed by another process meanwhile ({text}); run the command again"
        raise UserError(f"The table {place} {what}.") from None
