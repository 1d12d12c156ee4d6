"""Output files: checked before the work, written atomically; and folders that one process uses at a time."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from demo_sdtps.runtime.errors import UserError

LOCK = ".demo_sdtps.lock"  # name of a folder's lock file

SEAL, UNSEALED = "file_digest", "0" * 64
"""Entry of the metadata of a file of weights, and its value before `seal`."""

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
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """New file in the same folder (created if missing) that replaces `path` at the end, or is removed on failure. The old file
    is kept as `previous`, if given. Each of several processes writes a file of its own; the last to end replaces the others."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_temporary(path) as file:
            temporary = Path(file.name)
            try:
                yield temporary
                with open(temporary, "rb+") as written:
                    # otherwise, after a loss of power, the name could belong to an empty file
                    os.fsync(written.fileno())
                if os.name == "nt":  # which renames no open file
                    file.close()
                if previous and path.exists():
                    os.replace(path, previous)
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
    except OSError as error:
        raise UserError(
            f"The output {path} cannot be written ({error.strerror or error}); free some space or choose another path."
        ) from None


def _open_temporary(path: Path) -> BinaryIO:
    """An empty file beside `path`, .<name>.<number>.part, whose lock this process has until it is closed. What killed processes
    have left is taken for it or removed: its lock is free."""
    mine = None
    for number in count():
        temporary = path.with_name(f".{path.name}.{number}.part")
        is_new = not temporary.exists()
        if is_new and mine:
            break
        with suppress(FileExistsError if is_new else FileNotFoundError):  # another was faster
            file = open(temporary, "xb" if is_new else "rb+")  # noqa: SIM115 (the caller closes it)
            if not _is_free(file, temporary, is_new):
                file.close()
            elif mine:
                temporary.unlink()
                file.close()
            else:
                file.truncate()
                mine = file
    assert mine
    return mine


def _is_free(file: BinaryIO, path: Path, is_new: bool) -> bool:
    """Take the lock of an open file: → whether no other process has it, nor has renamed the file since. Without locks, on some
    file systems, a new file is free."""
    try:
        import fcntl  # not on Windows

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return is_new
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


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
                "%s is not locked, as its file system has no locks (%s): start one command there at a time.",
                what,
                error,
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
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def seal(path: Path, *others: Path) -> None:
    """Write the digest of a file of weights, and of others that belong to it, in the place of the digits of its entry SEAL."""
    (place, _), digest = _seal(path, others)
    with open(path, "rb+") as file:
        file.seek(max(0, place))
        file.write(digest if place >= 0 else b"")


def is_sound(path: Path, *others: Path) -> bool:
    """Whether a file has the digest that `seal` wrote, or none, as files of others."""
    (place, stored), digest = _seal(path, others)
    return place < 0 or stored == digest


def _seal(path: Path, others: Iterable[Path]) -> tuple[tuple[int, bytes], bytes]:
    """Place, -1 for none, and digits of a file's digest, and what they are."""
    content, place, stored = bytearray(path.read_bytes()), -1, b""
    if match := re.search(SEAL.encode() + rb".{1,40}?([0-9a-f]{64})", content, re.DOTALL):
        place, stored = match.start(1), bytes(match[1])
        content[place : place + len(UNSEALED)] = UNSEALED.encode()
        del match  # which keeps the array from changes of its size
    digest = hashlib.sha256(content)
    for other in others:
        digest.update(other.read_bytes())
    return (place, stored), digest.hexdigest().encode()


def has_form(content: object, form: Any) -> bool:
    """Whether what JSON holds has a form: a type; [form], a list of it; {name: form}, an object with these;
    {pattern: form}, one whose names a regular expression matches; (form, form), one of several. None is null or absent."""
    if isinstance(form, tuple):
        return any(has_form(content, one) for one in form)
    if isinstance(form, list):
        return isinstance(content, list) and all(has_form(each, form[0]) for each in content)
    if isinstance(form, dict):
        if not isinstance(content, dict):
            return False
        (first, inner), *_ = form.items()
        if isinstance(first, re.Pattern):
            return all(first.fullmatch(name) and has_form(content[name], inner) for name in content)
        return all(has_form(content.get(name), one) for name, one in form.items())
    return content is None if form is None else isinstance(content, form)


def read_json(path: Path, form: Any, default: Any = None, advice: str = "") -> Any:
    """Content of a JSON file of a form (`has_form`), `default` where there is none. A file that is damaged or has another form
    is refused with `advice`; without it it counts as missing, with a warning."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return default
    except (OSError, ValueError, RecursionError):
        content = None
    if content is not None and has_form(content, form):
        return content
    if advice:
        raise UserError(f"{path} is damaged, or not as this version writes it; {advice}.")
    logger.warning("%s is damaged, or not as this version writes it, and counts as missing.", path)
    return default


def write_json(path: Path, content: object) -> None:
    """Write `content` as JSON atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
