"""Names of a package that are imported from its modules when they are first asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for `package`: `modules` gives, for each module of demo_sdtps, the names that it defines;
    those of `__all__` are listed."""
    places = {name: f"demo_sdtps.{module}" for module, names in modules.items() for name in names}

    def find(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        namespace = vars(sys.modules[package])
        return sorted({*namespace["__all__"], *(name for name in namespace if name[:2] == "__")})

    return find, names
