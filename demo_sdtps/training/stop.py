"""Signals that ask a run to end: it finishes its step and saves a checkpoint."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# no SIGHUP on Windows
SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)
]
logger = logging.getLogger(__name__)


class Stopped(Exception):  # noqa: N818 (no error: the run is saved and can be resumed)
    """The run ends on request."""


@dataclass
class StopRequest:
    """`signal`: the name of the signal that asks to end, '' before; one that arrives while `is_immediate` raises `Stopped`."""

    signal: str = ""
    is_immediate: bool = False


@contextmanager
def listen() -> Iterator[StopRequest]:
    """Context manager: the first of SIGNALS is a request, and the second ends the process at once. A signal that is ignored
    (SIGHUP under nohup) remains so. `Stopped` leaves the context, of Ctrl-C as `KeyboardInterrupt`."""
    request, before = StopRequest(), {}
    # Python handles signals in its main thread only.
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: old for number, old in handlers.items() if old is not signal.SIG_IGN}
    # torchrun passes a signal on to processes that have received it themselves, and kills them after 30 s.
    second = signal.SIG_IGN if "TORCHELASTIC_RUN_ID" in os.environ else signal.SIG_DFL

    def handle(number: int, _: object) -> None:
        request.signal = signal.Signals(number).name
        for other in before:
            signal.signal(other, second)
        if request.is_immediate:
            raise Stopped

    for number in before:
        signal.signal(number, handle)
    try:
        yield request
    except Stopped:
        reason = request.signal or "a signal to another process"
        logger.info(
            f"stopped by {reason}, the run is saved; the same command with RESUME auto continues it"
        )
        if request.signal == "SIGINT":
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
