"""The modules of a checkout of a host, found by their names."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from demo_sdtps.runtime.errors import UserError


class Checkout:
    """The modules of a checkout, which must come from its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, module: str) -> bool:
        """Whether the checkout's folder has a module of this name."""
        return self.folder.joinpath(*module.split(".")).with_suffix(".py").is_file()

    def _absent(self, sought: str) -> UserError:
        return UserError(
            f"{self.folder} is not a checkout that the plug-in knows: it has no {sought}."
        )

    def module(self, name: str, sought: str) -> ModuleType:
        """Import a module of the checkout; an error names what was `sought`."""
        absent = self._absent(sought)
        try:
            module_object = import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name + ".").startswith(error.name + "."):
                raise absent from None
            raise UserError(
                f"{name} of the checkout needs {error.name}, which is not installed; install what the checkout's "
                "requirements.txt lists."
            ) from None
        places = getattr(module_object, "__path__", None) or [module_object.__file__]
        if not any(self.folder in Path(place).resolve().parents for place in places):
            raise absent
        return module_object

    def find(self, module: str, name: str) -> Any:
        """A name in a module of the checkout."""
        sought = f"{module}.{name}"
        value = self.module(module, sought)
        if not hasattr(value, name):
            raise self._absent(sought)
        return getattr(value, name)

    def replace(self, module: str, name: str, value: object) -> None:
        """Replace a name in a module of the checkout, in this process."""
        self.find(module, name)
        setattr(sys.modules[module], name, value)
