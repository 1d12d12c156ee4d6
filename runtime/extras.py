"""Libraries of the extras of setup.py, which are imported where they are used."""
from collections.abc import Mapping
from importlib.util import find_spec

from demo_sdtps.runtime.errors import UserError


def check_extra(what: str, extra: str, packages: Mapping[str, str]) -> None:
    """Raise `UserError` where one of the libraries that `what`, such as a command, needs is missing: names of packages by the
    module that is imported."""
    if absent := [package for module, package in packages.items() if not find_spec(module)]:
        raise UserError(f"{what} needs {', '.join(absent)}; install them by pip install -e '.[{extra}]'.")
