"""`UserError`, and what its sentences share; without torch, as commands that print their help need it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A user's mistake: one sentence that names the object, the fault and the remedy."""


def nearest_name(value: object, known: Iterable[object]) -> str:
    """ "; the nearest is 'X'" for the end of a sentence, or '' where none is near."""
    near = difflib.get_close_matches(str(value), map(str, known), n=1)
    return f"; the nearest is {near[0]!r}" if near else ""
