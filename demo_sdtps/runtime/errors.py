"""Errors: `UserError`, which commands print without a stack trace and with exit code 2, and what its sentences share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from vit_slim.errors import UserError as UserError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python or torch is the lack of memory of the CPU or a GPU; torch has no type for the CPU's."""
    return isinstance(error, MemoryError) or bool(
        re.search("out of memory|can't allocate memory", str(error))
    )


def check_extra(what: str, extra: str, packages: Mapping[str, str]) -> None:
    """Raise `UserError` where one of the libraries that `what`, such as a command, needs is missing: names of packages by the
    module that is imported. They are those of the extras of setup.py, which are imported where they are used."""
    if absent := [package for module, package in packages.items() if not find_spec(module)]:
        raise UserError(
            f"{what} needs {', '.join(absent)}; install them by pip install -e '.[{extra}]'."
        )


def nearest_name(value: object, known: Iterable[object]) -> str:
    """ "; the nearest is 'X'" for the end of a sentence, or '' where none is near."""
    near = difflib.get_close_matches(str(value), map(str, known), n=1)
    return f"; the nearest is {near[0]!r}" if near else ""
