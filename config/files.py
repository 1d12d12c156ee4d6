"""Output files: checked before the work, written atomically."""
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from demo_sdtps.config.common import UserError
from demo_sdtps.config.lock import check_lock, new_locked, remove_unlocked

SETTLED = 2_000_000_000  # nanoseconds: the next change of a younger file might not show in its times


def check_output_file(path: Path, suffix: str, overwrite: bool = False, inputs: Iterable[str | Path] = ()) -> Path:
    """`path`. Raises `UserError` where no file with this suffix can be written, where one exists that `overwrite` does not
    allow to replace, and always for a link, a pipe or a device and for one of the `inputs`; its folder need not exist yet.

    What a killed command has left of the file is removed."""
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if path.suffix != suffix or path.is_dir() or not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"The output {path} must be a file ending in {suffix} in a folder that can be written; choose another.")
    check_regular(path)
    check_apart(f"The output {path}", path, inputs)
    if path.exists() and not overwrite:
        raise UserError(f"The output {path} already exists; choose another, or pass --overwrite to replace it.")
    for temporary in temporaries(path.parent, [path.name]):
        remove_unlocked(temporary)
    return path


def check_regular(path: Path) -> None:
    """Raise `UserError` where `path` exists and is not a regular file: a link or a pipe would be replaced, not written to."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise UserError(f"The output {path} exists and is not a regular file (a link, pipe, device or folder), so it is not "
                        "replaced; remove it or choose another.")


def check_apart(what: str, path: Path, inputs: Iterable[str | Path]) -> None:
    """Raise `UserError` where `path` is one of the `inputs`, or lies in one that is a folder, also by way of links."""
    resolved = path.resolve()
    places = [place for place in (resolved, *resolved.parents) if place.exists()]
    for entry in map(str, filter(None, inputs)):
        # Subfolders too: they may be links to other places.
        within = [entry, *(os.path.join(where, name) for where, names, _ in os.walk(entry) for name in names)]
        if any(os.path.samefile(one, place) for one in within if os.path.exists(one) for place in places):
            relation = "lies in" if os.path.isdir(entry) else "is"
            raise UserError(f"{what} {relation} {entry}, which this command reads, so it is not written; choose another.")


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """New file in the same folder (created if missing) that replaces `path` at the end, or is removed on failure.

    The old file is kept as `previous`, if given. Raises `UserError` where it cannot be written, such as on a full disk, where
    what exists is not a regular file, and where the folder of a run was removed during the run (`check_lock`).
    """
    check_lock(path.parent)
    # A random name: nothing else has it, and what a killed process leaves is in nobody's way.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        for target in (path, previous):
            if target:
                check_regular(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_locked(temporary):
            yield temporary
            # Flushed before the rename: after a loss of power the name could otherwise belong to an empty file.
            _sync(temporary)
            if previous and path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
            _sync(path.parent)
    except OSError as error:
        raise UserError(f"The output {path} cannot be written ({error.strerror or error}); free some space or choose another "
                        "path.") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def temporaries(folder: Path, names: Iterable[str]) -> list[Path]:
    """The files of `atomic_write` in a folder, for outputs of these names; after a kill they are left over."""
    name = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.[0-9a-f]{{16}}\.part")
    return [path for path in sorted(folder.glob("*.part")) if name.fullmatch(path.name)]


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk, where the system supports it."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_stamp(path: str | Path) -> str:
    """What changes when a file does: its inode, size in bytes, and times of modification and of status change in nanoseconds;
    of the target where it is a link."""
    found = os.stat(path)
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def is_settled(stamp: str, now: int) -> bool:
    """Whether a `file_stamp` is old enough at `now`, in nanoseconds, that a later change of the file alters it."""
    return max(map(int, stamp.split()[2:])) < now - SETTLED


def sha256(path: str | Path) -> str:
    """Digest of a file's content in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """Content of a JSON file; None for one that is missing, damaged, truncated or nested too deep."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: Path, content: object) -> None:
    """Write `content` as JSON atomically. Raises `UserError`."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
