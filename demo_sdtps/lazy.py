"""Names of a package that are imported from its modules when they are first asked for (PEP 562)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazy_names(package: str, file: str) -> Callable[[str], object]:
    """A `__getattr__` for `package`, whose `file` imports the names under TYPE_CHECKING, where type checkers see them."""
    tree = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
    imports = [node for node in tree if isinstance(node, ast.ImportFrom)]
    places = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
