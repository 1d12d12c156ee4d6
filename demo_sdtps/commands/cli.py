"""What all programs have in common: flags, files to write, errors as one sentence. Without torch, so that --help is quick."""

import argparse
import errno
import multiprocessing
import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from demo_sdtps.config.common import print_lines as print_lines
from demo_sdtps.runtime.errors import UserError, is_out_of_memory
from demo_sdtps.runtime.files import check_output_file
from demo_sdtps.runtime.threads import prepare_threads

PICTURE = (".png", ".pdf", ".svg")  # suffixes of a figure
NEGATIVE = re.compile(r"-(\.?\d\S*|inf|nan)$")
FLAG = re.compile(r"(?<=^--)[\w-]+")
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def positive_int(text: str) -> int:
    """Type of a flag for argparse: a whole number above 0."""
    value = int(text)
    if not 0 < value < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is not above 0, or far too large")
    return value


def add_count(parser: ArgumentParser, flag: str, default: int | None, meaning: str) -> None:
    """Add a flag for a whole number above 0."""
    meaning += f" (default: {default})" if default else ""
    parser.add_argument(flag, type=positive_int, default=default, metavar="N", help=meaning)


def add_choice(
    parser: ArgumentParser, flag: str, choices: Iterable, default: str | int, meaning: str = ""
) -> None:
    """Add a flag for one of `choices`."""
    meaning += f" (default: {default})" if meaning else f"default: {default}"
    parser.add_argument(flag, type=type(default), choices=choices, default=default, help=meaning)


def add_path(parser: ArgumentParser, flag: str, metavar: str, meaning: str) -> None:
    """Add a required flag for a file or folder."""
    parser.add_argument(flag, type=Path, metavar=metavar, required=True, help=meaning)


def add_switch(parser: ArgumentParser, flag: str, meaning: str) -> None:
    """Add a flag without a value, which is False by default."""
    parser.add_argument(flag, action="store_true", help=meaning)


def add_overwrite(parser: ArgumentParser, meaning: str = "replace an output that exists") -> None:
    """Add the flag --overwrite."""
    add_switch(parser, "--overwrite", meaning)


def add_output(parser: ArgumentParser, name: str, *suffixes: str, **options: Any) -> None:
    """Add a flag or argument for a file to write that ends in one of `suffixes`, and with the first of a parser --overwrite."""
    outputs = parser.get_default("outputs")
    if outputs is None:
        parser.set_defaults(outputs=(outputs := {}))
        add_overwrite(parser)
    options = {"metavar": f"X{'|'.join(suffixes)}"} | options
    outputs[parser.add_argument(name, type=Path, **options).dest] = suffixes


def add_picture(parser: ArgumentParser, default: str) -> None:
    """Add the flag --output for a figure."""
    add_output(parser, "--output", *PICTURE, default=default, help=f"default: {default}")


def read_arguments(parser: ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """The words of a command; in flags - is as good as _. Raises `UserError` for outputs that cannot be written."""
    words = sys.argv[1:] if words is None else words
    words = [FLAG.sub(lambda flag: flag[0].replace("-", "_"), word) for word in words]
    parser._negative_number_matcher = NEGATIVE  # argparse takes -1e-4 for a flag
    arguments = parser.parse_intermixed_args(words)
    # before any work: a file that cannot be written, or exists without --overwrite
    for name, suffixes in getattr(arguments, "outputs", {}).items():
        if path := getattr(arguments, name):
            check_output_file(path, suffixes, arguments.overwrite)
    return arguments


def run(main: Callable[[], None]) -> None:
    """Call `main` with the number of threads and their wait policy set, before torch is imported, and end the process where it
    fails: code 2 and one sentence on stderr for a `UserError`, and for errors of the system that name a file, a full disk, a
    lack of memory and failed loading processes; 130 after Ctrl-C, or where the output's reader has ended. Bugs keep a trace."""
    code, sentence = 0, ""
    prepare_threads()
    try:
        main()
        sys.stdout.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        code, sentence = 130, "interrupted"
    except Exception as error:
        code, sentence = 2, _sentence(error)
        if not sentence:
            raise
    # After the error is freed, whose traceback keeps the loading processes alive.
    if sentence:
        rank = f"rank {os.environ['RANK']}: " if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
        sys.stderr.write(f"error: {rank}{sentence}\n" if code == 2 else f"{sentence}\n")
    if code:
        for process in multiprocessing.active_children():
            process.kill()  # one that waits for a lock of another that was killed does not end by itself
        sys.exit(code)


def _sentence(error: Exception) -> str:
    """What the user is told of an error, '' for a bug."""
    text = str(error)
    if isinstance(error, UserError):
        return text
    if is_out_of_memory(error):
        return "There is not enough memory for this; lower SOLVER.IMS_PER_BATCH, TEST.IMS_PER_BATCH or INPUT's sizes."
    if isinstance(error, OSError) and (error.filename or error.errno in DISK_ERRORS):
        return f"{error.filename or 'The output'}: the system says {error.strerror!r}; correct path, rights or disk."
    # one that begins with "Caught" is an error of our own code in a loading process
    if isinstance(error, RuntimeError) and re.match("(?!Caught ).*DataLoader", text):
        remedy = "lower DATALOADER.NUM_WORKERS, enlarge /dev/shm, or raise DATALOADER.TIMEOUT"
        return f"The loading processes failed ({text}); {remedy}."
    return ""
