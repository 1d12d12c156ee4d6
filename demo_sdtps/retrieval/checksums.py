"""Checksums of the files of a table that have none of its rows, as LanceDB checks nothing that it reads (docs/retrieval.md).

Rows have their own (columns.py). In object storage files have none of ours: what it stores is checked there.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

CHECKSUMS = "checksums"
LINE = re.compile(rb"^([0-9a-f]{8})  ([\w./-]+)$", re.MULTILINE)
VERSIONS, DELETIONS, INDICES = "_versions", "_deletions", "_indices"
"""Folders of a table's files: what it consists of, which rows are deleted, and approximate indices."""


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
