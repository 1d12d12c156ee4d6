"""SIGTERM, by which a cluster asks a run to end: it finishes its step and saves."""
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(Exception):  # noqa: N818 (no error: the run has saved where it is, and can be continued)
    """The run was asked to end and has done so."""


class StopNow(Exception):  # noqa: N818
    """Raised in the middle of what need not be finished."""


class StopRequest:
    """Whether SIGTERM has come while `listening`."""

    def __init__(self):
        self.requested = self.is_urgent = False

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Inside, SIGTERM is a request."""
        if threading.current_thread() is not threading.main_thread():  # no other thread may handle signals
            yield self
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def interrupt_immediately(self) -> Iterator[None]:
        """Inside, a request raises `StopNow`, one that has been there before too."""
        self.is_urgent = True
        try:
            if self.requested:
                raise StopNow
            yield
        finally:
            self.is_urgent = False

    def _note(self, *_: object) -> None:
        self.requested = True
        if self.is_urgent:
            raise StopNow
