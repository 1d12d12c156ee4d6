"""LanceDB at a place, a folder or an address of object storage, and its errors as sentences."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo_sdtps.config import UserError
from demo_sdtps.runtime.errors import check_extra

TABLE = "features"
READ_AHEAD = 1 << 23  # bytes, in place of LanceDB's 2 GiB
OLD_FILES = {"store.json", ".store.json.part"}  # of an index or export of earlier versions


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


def open_handle(place: str, name: str) -> Any:
    """LanceDB's table of a name at a place."""
    return connect(place).open_table(name)


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
        elif any(word in text for word in ("onflict", "TooMuchWriteContention", "already exists")):
            what = f"was changed by another process meanwhile ({text}); run the command again"
        elif any(word in text for word in ("ermission", "Read-only", "No space")):
            what = f"cannot be written ({text}); free some space or choose another place"
        else:
            what = f"cannot be read or is damaged ({text}); {advice}"
        raise UserError(f"The table {place} {what}.") from None


def quote(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
