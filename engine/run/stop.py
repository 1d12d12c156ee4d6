"""SIGTERM, by which a cluster asks a run to end: the run finishes its step and saves a checkpoint."""
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(Exception):  # noqa: N818 (no error: the run is saved and can be resumed)
    """The run ends on request."""


class StopRequest:
    """`requested`: whether SIGTERM has arrived inside `listening`."""

    def __init__(self):
        self.requested = self.is_urgent = False

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Inside, SIGTERM sets `requested`."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
            yield self
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def interrupt_immediately(self) -> Iterator[None]:
        """Inside, a request raises `Stopped`; an earlier one does at once."""
        self.is_urgent = True
        try:
            if self.requested:
                raise Stopped
            yield
        finally:
            self.is_urgent = False

    def _note(self, *_: object) -> None:
        self.requested = True
        if self.is_urgent:
            raise Stopped
