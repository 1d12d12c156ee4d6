"""Texts for console and log, which may contain file names: the one place where their control characters are escaped."""
import copy
import logging
import os
import sys


class Lines(str):
    """Text of several lines, each escaped by `printable`; any other text is a single line, whatever characters it has."""

    def __new__(cls, *lines: str) -> "Lines":
        return super().__new__(cls, "\n".join(map(printable, lines)))

    def __reduce__(self) -> tuple:  # pickled as a str, its line breaks would be escaped
        return Lines, tuple(self.split("\n"))


def printable(text: str) -> str:
    """`text` with control characters escaped, so that they neither break the line nor reach the terminal; `Lines` as they
    are."""
    if isinstance(text, Lines):
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_lines(*lines: object) -> None:
    """Print each on a line of stdout, by `printable`."""
    print(*(printable(line if isinstance(line, str) else str(line)) for line in lines), sep="\n", flush=True)


def print_error(sentence: str) -> None:
    """Print a sentence on stderr, by `printable`."""
    print_to_stderr(f"error: {printable(sentence)}")


def print_to_stderr(line: str) -> None:
    """Print a line; where stderr cannot be written, it goes nowhere, and the exit code stays what it is."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        # Python would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class LineFormatter(logging.Formatter):
    """Formats a message by `printable`: as one line, or as `Lines` where these are the whole message."""

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)
        record.msg = printable(record.msg if isinstance(record.msg, Lines) else record.getMessage())
        record.args = None
        return super().format(record)


def console() -> logging.Handler:
    """Handler that writes messages alone to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    return handler


def prepare_streams() -> None:
    """Make stdout and stderr usable where the caller has closed them (2>&-), and escape warnings from before the log."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the process ends)
    if logging.lastResort:
        logging.lastResort.setFormatter(LineFormatter())
