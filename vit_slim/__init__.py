"""Token pruning of any Vision Transformer, on torch alone: `slim` a model, `unslim` it, the loss of a score (docs/slim.md).

A name is imported when it is first asked for, as `UserError` serves where torch is not imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_slim.api import slim, slim_loss, unslim
    from vit_slim.errors import UserError
    from vit_slim.stage import Score, State

__all__ = ["Score", "State", "UserError", "slim", "slim_loss", "unslim"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"UserError": "errors", "Score": "stage", "State": "stage"}.get(name, "api")
    return getattr(import_module(f"{__name__}.{home}"), name)
