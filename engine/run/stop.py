"""Signals that ask a run to end: SIGTERM of a cluster and SIGHUP of a terminal that is lost, upon which the run finishes its
step and saves a checkpoint, and SIGINT (Ctrl-C), upon which it ends at once."""
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from demo_sdtps.config.common import STOPPING_SIGNALS

DEADLINE = 25.0
"""Seconds from the signal to the end of the run, without the time to write a checkpoint: torchrun and most clusters kill
after 30. A run whose steps are long has twice the time of its longest step."""
WRITING_DEADLINE = 600.0  # seconds to write a checkpoint after a signal; a disk that is gone would wait for ever
POLL = 0.2  # seconds between two looks at the deadline
LEAVE = 0  # no signal has this number


class Stopped(Exception):  # noqa: N818 (no error: the run is saved and can be resumed)
    """The run ends on request."""


class StopRequest:
    """`requested`: the name of the signal, SIGTERM or SIGHUP, that has arrived inside `listening`; empty before."""

    def __init__(self):
        self.requested = ""
        self.is_listening = self.is_urgent = self.is_ending = self.is_writing = False
        self.since = self.longest_step = 0.0

    @contextmanager
    def listening(self, mark: Callable[[str], None] = lambda reason: None) -> Iterator[None]:
        """Inside, SIGTERM and SIGHUP set `requested`, and the first SIGINT raises `KeyboardInterrupt`; signals that are
        ignored (SIGHUP under nohup) remain so.

        A second SIGINT, or DEADLINE seconds after the first signal, end the process wherever it is, after `mark(reason)`, with
        the exit code 128 + the number of the first signal. A `listening` inside another does nothing.
        """
        # Only the main thread may handle signals.
        if self.is_listening or threading.current_thread() is not threading.main_thread():
            yield
            return
        self.requested, self.is_listening, self.is_ending = "", True, False
        handlers = dict.fromkeys(STOPPING_SIGNALS, self._note) | {signal.SIGINT: self._interrupt}
        before = {number: handler for number in handlers if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)}
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        watch = threading.Thread(target=self._watch, args=(ours, {*before, LEAVE}, mark), daemon=True)
        watch.start()
        wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for number in before:
            signal.signal(number, handlers[number])
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            theirs.send(bytes([LEAVE]))
            watch.join()
            ours.close()
            theirs.close()
            self.is_listening = False

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

    @contextmanager
    def timing_step(self) -> Iterator[None]:
        """Inside is a step of the training, of which the longest counts for the deadline."""
        began = time.monotonic()
        yield
        self.longest_step = max(self.longest_step, time.monotonic() - began)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside, WRITING_DEADLINE counts; afterwards the deadline, from the beginning."""
        self.is_writing = True
        try:
            yield
        finally:
            self.since, self.is_writing = time.monotonic(), False

    def _note(self, number: int, _: object) -> None:
        self.requested = self.requested or signal.Signals(number).name
        if self.is_urgent and not self.is_ending:
            self.is_urgent = False  # a second signal does not interrupt the ending
            raise Stopped

    def _interrupt(self, *_: object) -> None:
        if not self.is_ending:
            self.is_ending = True
            raise KeyboardInterrupt

    def _watch(self, numbers: socket.socket, known: set[int], mark: Callable[[str], None]) -> None:
        """Read the numbers of the signals as they arrive.

        In a thread of its own, because Python handles signals in the main thread, which may wait in C code for ever.
        """
        seen: list[int] = []
        while True:
            with suppress(TimeoutError):
                arrived = [number for number in numbers.recv(64) if number in known]
                if LEAVE in arrived:
                    return
                if arrived and not seen:
                    self.since = time.monotonic()
                    numbers.settimeout(POLL)
                seen += arrived
            if seen.count(signal.SIGINT) > 1:
                _end(seen[0], "it was interrupted twice", mark)
            limit = WRITING_DEADLINE if self.is_writing else max(DEADLINE, 2 * self.longest_step)
            if seen and time.monotonic() - self.since > limit:
                _end(seen[0], f"it has not ended by itself {limit:.0f} s after {signal.Signals(seen[0]).name}", mark)


STOP = StopRequest()
"""The request to this process, to which signals belong."""


def _end(number: int, reason: str, mark: Callable[[str], None]) -> None:
    """End this process and its loading processes without cleaning up, for which it may have to wait."""
    sentence = f"The run is ended, because {reason}; RESUME auto continues it from its last checkpoint."
    try:
        mark(sentence)
        for process in multiprocessing.active_children():
            process.kill()
        with suppress(OSError):
            os.set_blocking(2, False)  # nobody may read the pipe any more
            os.write(2, f"error: {sentence}\n".encode())  # the main thread may hold the locks of the log and of sys.stderr
    finally:
        os._exit(128 + number)
