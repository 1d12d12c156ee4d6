"""Objects of a checkout whose class becomes a subclass of it, so that a method of ours runs before theirs.

Written for Python 3.8.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any


class Patched:
    """Base of the classes with our methods, which `make_patched` puts before a class of the checkout."""

    suffix: str
    _host: type  # the class of the checkout


@lru_cache
def _class(ours: Any, host: Any) -> Any:
    return type(f"{host.__name__}{ours.suffix}", (ours, host), {"__module__": host.__module__, "_host": host})


def make_patched(instance: Any, ours: type) -> None:
    """Give `instance` the methods of `ours`, a subclass of `Patched` with a `suffix` of names, in place."""
    host: Any = type(instance)
    instance.__class__ = _class(ours, host)
