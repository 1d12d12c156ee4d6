"""Signals that ask a run to end: it finishes its step and saves a checkpoint."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# no SIGHUP on Windows
SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)
]


class Stopped(Exception):  # noqa: N818 (no error: the run is saved and can be resumed)
    """The run ends on request; its text is the name of the signal."""


class StopRequest:
    """`signal`: the name of the first of `SIGNALS` that has arrived inside `listening`; empty before."""

    def __init__(self):
        self.signal = ""
        self.is_immediate = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Context manager: the first signal sets `signal`, and the second ends the process at once. A signal that is
        ignored (SIGHUP under nohup) remains so."""
        # Python handles signals there only
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: handler
            for number in SIGNALS
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN
        }
        # torchrun passes a signal on to processes that have received it themselves, and kills them after 30 s.
        second = signal.SIG_IGN if "TORCHELASTIC_RUN_ID" in os.environ else signal.SIG_DFL

        def request(number: int, _: object) -> None:
            self.signal = signal.Signals(number).name
            for other in before:
                signal.signal(other, second)
            if self.is_immediate:
                raise Stopped(self.signal)

        for number in before:
            signal.signal(number, request)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def raise_immediately(self) -> Iterator[None]:
        """Context manager: a signal raises `Stopped`; an earlier one does at once."""
        self.is_immediate = True
        try:
            if self.signal:
                raise Stopped(self.signal)
            yield
        finally:
            self.is_immediate = False
