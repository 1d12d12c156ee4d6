"""Run a script of another code base, unchanged, with the keys and the model of SDTPS and slimming (docs/plug_in.md).

python -m demo_sdtps [--fast] [--weight FILE] SCRIPT [its arguments]
"""

from __future__ import annotations

import argparse
import inspect
import os
import runpy
import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo_sdtps.config.common import RETURN_PATTERNS
from demo_sdtps.plug_in.checkout import Checkout
from demo_sdtps.plug_in.config import add_config
from demo_sdtps.plug_in.hosts import HOSTS
from demo_sdtps.runtime.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[Any, Any], object]  # of a model by its configuration

FACTORIES = (
    ("modeling.make_model", "make_model"),
    ("modeling.make_model_ugg", "make_model"),
    ("modeling.make_model", "make_frame"),
)
"""Modules and functions that make the models of HOSTS."""


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
    changes: list[Change] = []
    if fast:
        from demo_sdtps.plug_in.fast import FastFusion, replace_ranking

        replace_ranking(checkout)
        changes.append(FastFusion.replace)
    changes.append(patch)
    if weight is not None:
        changes.append(lambda model, cfg: _load_from(weight, model))
    _after_make_model(checkout, changes)
    if "HDM" in checkout.find("config", "cfg").MODEL:  # DeMo's
        _evaluate_all_patterns(checkout)

    rank = os.environ.get("LOCAL_RANK")
    if rank and "--local_rank" in text and "--local_rank" not in " ".join(arguments):
        arguments = [f"--local_rank={rank}", *arguments]
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def _after_make_model(checkout: Checkout, changes: list[Change]) -> None:
    """Let the functions of FACTORIES that the checkout has end with calls of (model, cfg)."""
    factories = [
        (module, name)
        for module, name in FACTORIES
        if checkout.has(module) and hasattr(checkout.module(module, module), name)
    ]
    if not factories:
        checkout.find(*FACTORIES[0])  # the sentence
    for module, name in factories:
        original = checkout.find(module, name)
        make = _then(original, changes)
        for place in ("modeling", module):
            if getattr(checkout.module(place, place), name, None) is original:
                checkout.replace(place, name, make)


def _then(original: Callable[..., Any], changes: list[Change]) -> Callable[..., Any]:
    @wraps(original)
    def make_model(cfg, *args, **kwargs):
        model = original(cfg, *args, **kwargs)
        for change in changes:
            change(model, cfg)
        return model

    return make_model


def _load_from(weight: str, model: Any) -> None:
    """Let the model's `load_param` read `weight`, whatever file its caller names."""
    original = type(model).load_param
    type(model).load_param = lambda self, trained_path=None: original(self, weight)


def _evaluate_all_patterns(checkout: Checkout) -> None:
    """Let the training loop evaluate the three return patterns with SDTPS also where it would evaluate one: 3 with HDM and ATM
    off, 1 in distributed training."""
    original = checkout.find("engine.processor", "training_neat_eval")
    signature = inspect.signature(original)

    @wraps(original)
    def training_neat_eval(*args, **kwargs):
        call = signature.bind(*args, **kwargs)
        model_cfg, asked = call.arguments["cfg"].MODEL, call.arguments.get("return_pattern")
        if not model_cfg.USE_SDTPS or (asked is not None and (model_cfg.HDM or model_cfg.ATM)):
            return original(*args, **kwargs)
        for pattern in RETURN_PATTERNS:
            call.arguments["return_pattern"] = pattern
            result = original(*call.args, **call.kwargs)
        return result

    checkout.replace("engine.processor", "training_neat_eval", training_neat_eval)
