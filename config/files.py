"""Output files: checked before the work, written atomically."""
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from demo_sdtps.config.common import UserError


def check_output_file(path: Path, suffix: str) -> Path:
    """`path`. Raises `UserError` where no file with this suffix can be written; its folder need not exist yet."""
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if path.suffix != suffix or path.is_dir() or not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"The output {path} must be a file ending in {suffix} in a folder that can be written; choose another.")
    return path


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """Temporary path in the same folder (created if missing) that replaces `path` at the end, or is removed on failure.

    The old file is kept as `previous`, if given. Raises `UserError` where it cannot be written, such as on a full disk.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk, where the system supports it."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
