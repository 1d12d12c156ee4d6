"""Objects of a checkout whose class becomes a subclass of it, so that a method of ours runs before theirs.

Written for Python 3.8.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any


class Patched:
    """Base of the classes with our methods, which `make_patched` puts before a class of the checkout."""

    _host: type
    _ours: type

    def __reduce__(self):
        # The class is made at run time: by its name pickle would not find it.
        host: Any = type(self)
        layers = []
        while issubclass(host, Patched):
            layers.append(host._ours)
            host = host._host
        return _empty, (host, *reversed(layers)), self.__dict__


@lru_cache
def _class(ours: Any, host: Any) -> Any:
    return type(f"{host.__name__}{ours.suffix}", (ours, host), {"__module__": host.__module__, "_host": host, "_ours": ours})


def make_patched(instance: Any, ours: type) -> None:
    """Give `instance` the methods of `ours`, a subclass of `Patched` with a `suffix` of names, in place."""
    host: Any = type(instance)
    instance.__class__ = _class(ours, host)


def _empty(host: Any, *layers: type) -> Any:
    for ours in layers:
        host = _class(ours, host)
    return host.__new__(host)
