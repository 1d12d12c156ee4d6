"""Run a script of another code base, unchanged, with the keys and the model of SDTPS and slimming (docs/plug_in.md).

python -m demo_sdtps [--fast] [--weight FILE] SCRIPT [its arguments]
"""

from __future__ import annotations

import argparse
import inspect
import os
import runpy
import sys
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo_sdtps.config.common import RETURN_PATTERNS
from demo_sdtps.plug_in.hosts import HOSTS, add_config, find_host
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Change = Callable[[Any, Any], object]  # of a model by its configuration


def main() -> None:
    """The command. A `UserError` becomes one sentence and exit code 2; an error of the script keeps its trace."""
    parser = argparse.ArgumentParser(
        prog="python -m demo_sdtps",
        description=f"Run a script of a checkout of {', '.join(host.name for host in HOSTS.values())}, which stays as it is. "
        "In its arguments or its configuration file MODEL.USE_SDTPS True switches SDTPS on, MODEL.SLIM_BLOCKS and "
        "MODEL.SLIM_KEEP slimming.",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="evaluate by this project's ranking, re-ranking and, in DeMo, HDM and ATMoE, with the same results",
    )
    parser.add_argument(
        "--weight",
        metavar="FILE",
        help="checkpoint to load in place of the file named in the script",
    )
    parser.add_argument("script", metavar="SCRIPT", help="of the checkout, such as train_net.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    words = parser.parse_args()
    try:
        launch(Path(words.script), words.arguments, words.weight, words.fast)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def launch(script: Path, arguments: list[str], weight: str | None, fast: bool) -> None:
    """Prepare the checkout that `script` stands in and run it as `python SCRIPT arguments` would."""
    if not script.is_file():
        raise UserError(
            f"There is no script {script}; give a script of a checkout, such as train_net.py."
        )
    if weight is not None and not Path(weight).is_file():
        raise UserError(f"--weight: there is no file {weight}.")
    from demo_sdtps.plug_in.patch import patch  # and torch

    text = script.read_text(encoding="utf-8")
    if weight is not None and "load_param" not in text:
        raise UserError(
            f"--weight {weight} has no use: {script.name} loads no checkpoint by the model's load_param."
        )
    folder = script.resolve().parent
    if sys.path and Path(sys.path[0] or ".").resolve() == Path.cwd():
        # `python -m` puts the working directory here, where `python SCRIPT` puts the script's folder
        del sys.path[0]
    sys.path.insert(0, str(folder))
    checkout = Checkout(folder)
    add_config(checkout.find("config", "cfg"))
    changes: list[Change] = [patch, partial(_evaluate_all_patterns, checkout)]
    if fast:
        from demo_sdtps.plug_in.fast import FastFusion, replace_ranking

        replace_ranking(checkout)
        changes.insert(0, FastFusion.replace)
    if weight is not None:
        changes.append(partial(_load_from, weight))
    _change_models(checkout, changes)

    rank = os.environ.get("LOCAL_RANK")
    if rank and "--local_rank" in text and "--local_rank" not in " ".join(arguments):
        arguments = [f"--local_rank={rank}", *arguments]
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


class Checkout:
    """The modules in the folder of a checkout, which `sys.path` begins with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str) -> ModuleType | None:
        """A module, None where the folder has none. Raises `UserError` for a package that is not installed."""
        place = self.folder.joinpath(*name.split("."))
        if not (place.is_dir() or place.with_suffix(".py").is_file()):
            return None
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            raise UserError(
                f"{name} of the checkout needs {error.name}, which is not installed; install what the checkout's "
                "requirements.txt lists."
            ) from None

    def find(self, module: str, name: str) -> Any:
        """A name in a module. Raises `UserError` where there is none."""
        namespace = self.module(module)
        if not hasattr(namespace, name):
            raise UserError(
                f"{self.folder} is not a checkout that the plug-in knows: it has no {module}.{name}."
            )
        return getattr(namespace, name)

    def replace(self, module: str, name: str, value: object) -> None:
        """Replace a name in a module, in this process."""
        self.find(module, name)
        setattr(sys.modules[module], name, value)


def _change_models(checkout: Checkout, changes: list[Change]) -> None:
    """Let the functions that make the models of HOSTS, as far as the checkout has them, end with calls of (model, cfg)."""
    factories = dict.fromkeys(host.factory for host in HOSTS.values())
    known = [place for place in factories if hasattr(checkout.module(place[0]), place[1])]
    for module, name in known or [HOSTS["DeMo"].factory]:
        original = checkout.find(module, name)

        @wraps(original)
        def make_model(cfg: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            model = original(cfg, *args, **kwargs)
            for change in changes:
                change(model, cfg)
            return model

        for place in ("modeling", module):
            if getattr(sys.modules[place], name, None) is original:
                checkout.replace(place, name, make_model)


def _load_from(weight: str, model: Any, cfg: Any) -> None:
    """Let the model's `load_param` read `weight`, whatever file its caller names."""
    original = type(model).load_param
    type(model).load_param = lambda self, trained_path=None: original(self, weight)


def _evaluate_all_patterns(checkout: Checkout, model: Any, cfg: Any) -> None:
    """Let the training loop evaluate the three return patterns with SDTPS also where it would evaluate one: 3 with HDM and ATM
    off, 1 in distributed training."""
    place = find_host(model).evaluation if cfg.MODEL.USE_SDTPS else None
    if place is None:
        return
    original = checkout.find(*place)
    signature = inspect.signature(original)

    @wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        if "return_pattern" in call.arguments and (cfg.MODEL.HDM or cfg.MODEL.ATM):
            return original(*args, **kwargs)
        for pattern in RETURN_PATTERNS:
            call.arguments["return_pattern"] = pattern
            result = original(*call.args, **call.kwargs)
        return result

    checkout.replace(*place, evaluate)
