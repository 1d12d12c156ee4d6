"""Checkpoints: plain tensors, numbers and texts, loadable with weights_only=True, written atomically."""
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.common import WEIGHT_EXAMPLE as EXAMPLE
from demo_sdtps.config.load import StoredText
from demo_sdtps.modeling.weights import LOAD_ERRORS, from_demo, is_demo, load_torch, tensors_of
from demo_sdtps.runtime.files import atomic_write

MAX_NAMED = 3
CLASSIFIER, CAMERAS = ".classifier.weight", "backbone.camera_embedding"
SLIMMING = "slimming.scores."

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A model's weights under our names, its numbers of identities and cameras, and the data set it was trained on."""

    path: Path
    model: dict[str, torch.Tensor]
    num_class: int
    camera_num: int
    dataset: str | None = None
    has_demo_names: bool = False


def save_checkpoint(path: Path, cfg: CfgNode, model: nn.Module, epoch: int, previous: Path | None = None,
                    state: Mapping[str, object] | None = None) -> None:
    """Write a model's weights, and `state` beside them, by `save_whole`."""
    content = {"model": model.state_dict(), "dataset": cfg.DATASETS.NAMES, "epoch": epoch, "config": cfg.dump()}
    save_whole({**content, **(state or {})}, path, previous)


def save_whole(content: Mapping, path: Path, previous: Path | None = None) -> None:
    """torch.save by `atomic_write`; an earlier file is kept as `previous`, if given. Raises `UserError` where it cannot be
    written."""
    with atomic_write(path, previous) as temporary, open(temporary, "wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch raises it for a full disk, with the real error as context
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint of ours, or a bare state dict with our or DeMo's names.

    Raises `UserError` for a file that is missing, cannot be read, or holds no weights of this model.
    """
    path = Path(path)
    weights, content = read_weights_file(path)
    has_demo_names = is_demo(weights)
    if has_demo_names:
        try:
            weights = from_demo(weights)
        except ValueError as error:
            raise UserError(f"The weights {path} cannot be used: {error}; give another file.") from None
    classes = [len(weight) for name, weight in weights.items() if name.endswith(CLASSIFIER) and weight.ndim == 2]
    if not classes:
        first = f", the first {min(weights)}" if weights else ""
        raise UserError(f"The file {path} holds no weights of this model (no classifier among its {len(weights)} tensors{first}"
                        "); give a checkpoint that train_net.py wrote, or one of DeMo.")
    cameras = len(weights[CAMERAS]) if CAMERAS in weights else content.get("camera_num", 1)
    return Checkpoint(path, weights, classes[0], cameras, content.get("dataset"), has_demo_names)


def read_weights_file(path: Path, example: str = EXAMPLE) -> tuple[dict[str, torch.Tensor], Mapping]:
    """The weights in a torch file, and its whole content. Raises `UserError` where it is missing or cannot be read."""
    content = _load(path, example)
    return tensors_of(content), content if isinstance(content, Mapping) else {}


def stored_config(path: Path, example: str = EXAMPLE) -> StoredText:
    """The configuration that a checkpoint was trained with. Raises `UserError` where it cannot be read or holds none."""
    content = _load(path, example, without_weights=True)
    text = content.get("config") if isinstance(content, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"The weights {path} hold no configuration (bare weights and DeMo's checkpoints have none); give "
                        "--config_file the one that they were trained with.")
    return StoredText(path, text)


def _load(path: Path, example: str, without_weights: bool = False) -> object:
    if path.is_dir():
        raise UserError(f"The weights {path} are a folder; give a file in it such as {path / 'last.pth'}.")
    if not path.is_file():
        raise UserError(f"The weights {path} do not exist; give a checkpoint such as {example}.")
    try:
        return load_torch(path, without_weights)
    except LOAD_ERRORS:
        raise UserError(f"The weights {path} cannot be read as a torch checkpoint of plain tensors (another format, or the "
                        "file is damaged or cut short); give another file.") from None


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load a checkpoint's weights into `model`.

    Those of a score of patches are left out, with a warning, where the model's has none. Raises `UserError` naming the first
    keys where they do not fit.
    """
    weights = checkpoint.model
    if not any(name.startswith(SLIMMING) for name in model.state_dict()):
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(SLIMMING)}
        if len(weights) < len(checkpoint.model):
            logger.warning("WARNING: the weights %s were trained with a score of patches (slimming) that the configuration "
                           "does not use, so it is left out.", checkpoint.path)
    fill_model(model, weights, checkpoint.path)


def fill_model(model: nn.Module, found: Mapping[str, torch.Tensor], path: Path) -> None:
    """Load weights of the file `path` into `model`. Raises `UserError` naming the first keys that do not fit."""
    expected = model.state_dict()
    problems = [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} is not part of the model" for name in found if name not in expected]
    problems += [f"{name} has the shape {tuple(found[name].shape)}, not {tuple(expected[name].shape)}"
                 for name in expected if name in found and found[name].shape != expected[name].shape]
    if problems:
        more = f" … and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
        raise UserError(f"The weights {path} do not fit the configuration's model: "
                        f"{'; '.join(problems[:MAX_NAMED])}{more}. Use the configuration that they were trained "
                        "with (config.yml beside them), or other weights.")
    model.load_state_dict(found)
