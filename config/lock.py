"""Locks: a run's folder is used by one process at a time, and a file that is being written is told from one left over."""
import errno
import json
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from demo_sdtps.config.common import UserError

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

LOCK = ".demo_sdtps.lock"
"""Name of a folder's lock file: JSON with the process, its host, when it began and its command."""
UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of file systems without locks
BEGINNING = b'{"process": '

logger = logging.getLogger(__name__)
_held: dict[Path, int] = {}  # descriptors of this process's locks, by their files


def refuse(sentence: str) -> None:
    """Raise `UserError`: what a command that finds another at work does."""
    raise UserError(f"{sentence}; wait until it ends, or choose another.")


@contextmanager
def locked(file: Path, what: str, when_busy: Callable[[str], None] = refuse) -> Iterator[None]:
    """Inside, no other process has the lock file `file`; it, and the folders made for it, are removed at the end if empty.

    The lock is flock's, which the system frees when its owner dies, so a file that is left over locks nothing. It is a file
    rather than the folder's own descriptor because it tells who holds the lock, and because NFS locks files only. While
    another process holds it, `when_busy` is called repeatedly, with a sentence on `what` and that process. Raises `UserError`
    where the file cannot be written or is somebody else's.
    """
    file = file.absolute()
    made = [folder for folder in file.parents if not folder.exists()]
    try:
        with _reported(what):
            while (descriptor := _attempt(file, what, when_busy)) is None:
                time.sleep(0.01)
        _held[file] = descriptor
        try:
            with _reported(what):
                _write_holder(descriptor)
            yield
        finally:
            if _held.pop(file, None) is not None:  # None in a forked process
                if _is_at(descriptor, file):
                    with suppress(OSError):  # the folder may be read-only by now
                        file.unlink()
                os.close(descriptor)
    finally:
        for folder in made:
            with suppress(OSError):  # not empty
                folder.rmdir()


def check_lock(folder: Path) -> None:
    """Raise `UserError` where this process has locked `folder` and it was removed or replaced since."""
    file = (folder / LOCK).absolute()
    if file in _held and not _is_at(_held[file], file):
        raise UserError(f"OUTPUT_DIR {folder} was removed or replaced while the run was going on (its {LOCK} is gone), so the "
                        "run ends and writes nothing more there; start it again.")


@contextmanager
def new_locked(file: Path) -> Iterator[None]:
    """Make the file, which must be a new one; inside, this process has locked it. Raises `OSError`."""
    with ExitStack() as stack:
        while True:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)
            stack.callback(os.close, descriptor)
            if fcntl:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            if file.exists():  # `remove_unlocked` has not come between
                break
        if not fcntl:
            stack.close()  # Windows does not rename open files
        yield


def remove_unlocked(file: Path) -> None:
    """Remove a file of `new_locked` whose process has ended; one on a file system without locks stays."""
    if not fcntl:
        return
    with suppress(OSError), ExitStack() as stack:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()


def _attempt(file: Path, what: str, when_busy: Callable[[str], None]) -> int | None:
    """The descriptor of the locked file; None where another process holds it or has just removed it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            # A lock file that is a link, or a pipe, is not followed or waited for.
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0),
                                 0o666)
        except FileNotFoundError:  # its last owner has removed the folder
            return None
        stack.callback(os.close, descriptor)
        content = os.read(descriptor, 1 << 20)
        if not content.startswith(BEGINNING) and content:
            raise UserError(f"The file {file} is not a lock of this program, which needs its name; move it elsewhere.")
        try:
            if fcntl:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_busy(f"{what} is in use by {_holder(content)}")
            return None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            logger.warning("%s is not locked, as its file system has no locks (%s): start one command there at a time.", what,
                           error.strerror)
        if not _is_at(descriptor, file):  # its last owner has removed it
            return None
        stack.pop_all()
        return descriptor


def _write_holder(descriptor: int) -> None:
    holder = {"process": os.getpid(), "host": platform.node(), "command": shlex.join(["python", *sys.argv]),
              "since": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    os.fsync(descriptor)  # other machines see it then


def _holder(content: bytes) -> str:
    try:
        return "process {process} on {host}, since {since} ({command})".format(**json.loads(content))
    except (ValueError, LookupError):  # it has not written it yet
        return "another process"


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether the open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(file))
    except OSError:
        return False


@contextmanager
def _reported(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} cannot be written ({error.strerror}); choose another.") from None


def _forget() -> None:
    """Close the locks in a forked process: a loading process may outlive a run that is killed."""
    while _held:
        os.close(_held.popitem()[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
