"""Former places of the stable names of docs/api.md. They leave with the next release."""
import sys
import warnings
from importlib import import_module

MOVED = {
    "engine.metrics": "evaluation.metrics",
    "engine.reranking": "evaluation.reranking",
    "engine.evaluation": "evaluation",
    "engine.evaluation.analysis": "evaluation.analysis",
    "engine.evaluation.metrics": "evaluation.metrics",
    "engine.evaluation.reranking": "evaluation.reranking",
    "engine.optim": "training.optim",
    "modeling.selectors.base": "modeling.scores.base",
}


def import_moved(package: str) -> None:
    """Make the former modules of `package`, such as demo_sdtps.engine, importable under their old names, with a warning."""
    for old, new in MOVED.items():
        if f"demo_sdtps.{old}".startswith(f"{package}."):
            module = sys.modules[f"demo_sdtps.{old}"] = import_module(f"demo_sdtps.{new}")
            parent, _, name = f"demo_sdtps.{old}".rpartition(".")
            setattr(sys.modules[parent], name, module)
    warnings.warn(f"{package} has moved (CHANGELOG.md), and its old name leaves with the next release.", FutureWarning, 3)
