"""Output files: checked before the work, written atomically; and folders that one process uses at a time."""

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from demo_sdtps.runtime.errors import UserError

LOCK = ".demo_sdtps.lock"  # name of a folder's lock file

logger = logging.getLogger(__name__)


def check_output_file(path: Path, suffix: str | tuple[str, ...], overwrite: bool = False) -> Path:
    """`path`, where a file with this suffix, or one of these, can be written."""
    suffixes = (suffix,) if isinstance(suffix, str) else suffix
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    is_writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    if path.suffix not in suffixes or path.is_dir() or not is_writable:
        raise UserError(
            f"The output {path} must be a file ending in {' or '.join(suffixes)} in a folder that can be written."
        )
    if path.exists() and not overwrite:
        raise UserError(
            f"The output {path} already exists; choose another, or pass --overwrite to replace it."
        )
    return path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Context manager: a temporary file beside `path`, whose folder is made, that replaces it at the end and is removed on
    failure. Of several processes the last to end replaces the others' file. A killed one leaves .<name>.<letters>.part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        yield temporary
        with open(temporary, "rb+") as written:
            # otherwise, after a loss of power, the name could belong to an empty file
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"The output {path} cannot be written ({error.strerror or error}); free some space or choose another path."
        ) from None
    finally:
        with suppress(OSError):  # it has replaced `path`, or there is none
            temporary.unlink()


@contextmanager
def lock_file(file: Path, what: str) -> Iterator[None]:
    """Context manager: no other process has the lock file `file`; it, and the folders made for it, are removed at the end
    if empty. The system frees the lock of a process that is killed. A file system without locks is a warning."""
    folders = [folder for folder in file.absolute().parents if not folder.exists()]
    # a soft lock outlives a killed process
    lock = FileLock(file, timeout=0, fallback_to_soft=False)
    try:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise UserError(
                f"{what} is in use by another process ({file} is locked); wait until it ends, or choose another."
            ) from None
        except (OSError, NotImplementedError) as error:
            if not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
                raise UserError(f"{what} cannot be written ({error}); choose another.") from None
            logger.warning(
                f"{what} is not locked, as its file system has no locks ({error}): start one command there at a time."
            )
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                file.unlink()
            lock.release()
        for folder in folders:
            with suppress(OSError):  # not empty
                folder.rmdir()


def sha256(path: str | Path) -> str:
    """Digest of a file's content in hexadecimal digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def has_form(content: object, form: Any) -> bool:
    """Whether what JSON holds has a form: a type; [form], a list of it; {name: form}, an object with these."""
    if isinstance(form, list):
        return isinstance(content, list) and all(has_form(each, form[0]) for each in content)
    if isinstance(form, dict):
        return isinstance(content, dict) and all(
            has_form(content.get(name), one) for name, one in form.items()
        )
    return isinstance(content, form)


def read_json(path: Path, form: Any, default: Any = None, advice: str = "remove it") -> Any:
    """Content of a JSON file, `default` where there is none. Raises `UserError`, with `advice`, for one not of `has_form`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return default
    except (OSError, ValueError, RecursionError):
        content = None
    if content is None or not has_form(content, form):
        raise UserError(f"{path} is damaged, or not as this version writes it; {advice}.")
    return content


def write_json(path: Path, content: object) -> None:
    """Write `content` as JSON atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
