"""Signals that end a command: it leaves its contexts, which remove what is half-written, before it ends."""
import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from demo_sdtps.config.common import STOPPING_SIGNALS

DEADLINE = 20.0
"""Seconds from the signal to the end of the process; torchrun and most clusters kill after 30."""

_handled: set[int] = set()  # the signals whose default handler is replaced


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Inside, the first SIGTERM or SIGHUP raises `SystemExit` with the code 128 + its number, and further ones are ignored.
    DEADLINE seconds after it the process ends wherever it is.

    A signal that is ignored (SIGHUP under nohup) or has another handler than the default one keeps it. Python calls handlers in
    the main thread and between its own instructions, so a call of C code ends first. Processes that are forked inside have the
    default handlers, since the clean-up is their parent's.
    """
    # Only the main thread may handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process, is_asked = os.getpid(), False

    def end(number: int, _: FrameType | None) -> None:
        nonlocal is_asked
        if os.getpid() != process:  # a forked process, before `_restore`
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif not is_asked:
            is_asked = True
            # Not by `threading`, whose locks the interrupted code may hold.
            _thread.start_new_thread(_end_at_last, (128 + number,))
            sys.exit(128 + number)

    replaced = {number for number in STOPPING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL}
    _handled.update(replaced)
    for number in replaced:
        signal.signal(number, end)
    try:
        yield
    finally:
        _handled.difference_update(replaced)
        if not is_asked:  # otherwise further signals are ignored to the end of the process
            for number in replaced:
                signal.signal(number, signal.SIG_DFL)


def _end_at_last(code: int) -> None:
    time.sleep(DEADLINE)
    os._exit(code)


def _restore() -> None:
    while _handled:
        signal.signal(_handled.pop(), signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore)
