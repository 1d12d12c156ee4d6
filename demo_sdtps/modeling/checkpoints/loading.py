"""Checkpoints: plain tensors, numbers and texts, loadable with weights_only=True, written atomically."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.load import StoredText
from demo_sdtps.modeling.checkpoints.names import (
    FORMER,
    OUR_BACKBONE,
    from_demo,
    load_file,
    named_tensors,
    rename,
)
from demo_sdtps.modeling.exported import ExportedModel, is_exported
from demo_sdtps.runtime.files import atomic_write, read_json

MAX_NAMED = 3
CLASSIFIER, CAMERAS = ".classifier.weight", "backbone.camera_embedding"
SLIMMING = "slimming.scores."
SAVED, SAVED_PREFIX, SAVED_CONFIG = "model.safetensors", "model.", "config.json"
"""What `Extractor.save_pretrained` writes: the weights, what their names begin with, and the arguments of `Extractor`."""
IN_FOLDER = ("last.pth", "best.pth", SAVED)
"""What a folder is read from, the first that it has: of a run the last epoch, whose figures are fair (docs/train.md)."""
CLASSES = "class_digest"
"""Entry of a checkpoint: the digest of the training images and whose they are, the same where its classes are."""
ORIGIN = ("dataset", "data", CLASSES, "cameras", "epoch", "commit", "metrics", "calibration")
"""Entries of a checkpoint, or of a saved `Extractor`, on its training."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A model's weights under our names, its numbers of identities and cameras, and those of ORIGIN that are known: the data
    set that it was trained on, what its images are, their digest, what its cameras are called, the epoch, and, of a saved
    `Extractor`, the commit, the record of its evaluation and its calibration; and the configuration of the training as YAML."""

    path: Path
    model: dict[str, torch.Tensor]
    num_class: int
    camera_num: int
    origin: Mapping[str, Any]
    config: str = ""


def save_checkpoint(
    path: Path, cfg: CfgNode, model: nn.Module, epoch: int, state: Mapping[str, object] = {}
) -> None:
    """Write a model's weights, and `state` beside them, by `save_whole`."""
    content = {"model": model.state_dict(), "dataset": cfg.DATASETS.NAMES, "epoch": epoch}
    save_whole({**content, "config": cfg.dump(), **state}, path)


def save_whole(content: Mapping, path: Path) -> None:
    """torch.save by `atomic_write`."""
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # torch raises it for a full disk, with the real error as context
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint of ours, or a bare state dict with our or DeMo's names, by a name as `weights_file` takes it."""
    path, content = _load(path)
    weights = {rename(name, [FORMER]): tensor for name, tensor in named_tensors(content).items()}
    if any(name.startswith("BACKBONE.") for name in weights):  # DeMo's names
        weights = from_demo(weights)
    classes = [len(weight) for name, weight in weights.items() if name.endswith(CLASSIFIER)]
    if not classes:
        first = f", the first {min(weights)}" if weights else ""
        raise UserError(
            f"The file {path} holds no weights of this model (no classifier among its {len(weights)} tensors{first}"
            "); give a checkpoint that train_net.py wrote, or one of DeMo."
        )
    cameras = len(weights[CAMERAS]) if CAMERAS in weights else content.get("camera_num", 1)
    text = str(content.get("config") or "")
    # Without a configuration the file is of other code, in which such entries may be anything.
    names = ORIGIN if text else ()
    origin = {name: content[name] for name in names if content.get(name) is not None}
    return Checkpoint(path, weights, classes[0], cameras, origin, text)


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The weights of any model."""
    return named_tensors(_load(path)[1])


def stored_config(path: str | Path) -> StoredText:
    """The configuration that a checkpoint, or an exported file, was trained with."""
    if is_exported(path):
        return ExportedModel(path).config
    path, content = _load(path)
    text = content.get("config")
    if not isinstance(text, str) or not text.strip():
        raise UserError(
            f"The weights {path} hold no configuration (bare weights and DeMo's checkpoints have none); give "
            "--config_file the one that they were trained with."
        )
    return StoredText(path, text)


def weights_file(name: str | Path) -> Path:
    """The file that is meant by the name of weights: a file, or the first of IN_FOLDER in a folder."""
    path = Path(name)
    if path.is_dir():
        path = next((path / file for file in IN_FOLDER if (path / file).is_file()), path)
    if not path.is_file():
        kinds = f" (no {', '.join(IN_FOLDER)} in this folder)" if path.is_dir() else ""
        raise UserError(
            f"The weights {path} do not exist{kinds}; give a checkpoint, as last.pth or best.pth of a run."
        )
    return path


def _load(name: str | Path) -> tuple[Path, Mapping[str, Any]]:
    """The file of weights by `weights_file`, and its content, that of a saved `Extractor` under the names of a checkpoint."""
    path = weights_file(name)
    if is_exported(path):
        raise UserError(
            f"The weights {path} are an exported model, but a checkpoint is needed; give the one that it was made from."
        )
    try:
        content = load_file(path)
    except ValueError:
        raise UserError(
            f"The weights {path} cannot be read as a torch checkpoint of plain tensors or as safetensors (another "
            "format, or the file is damaged or cut short); give another file."
        ) from None
    content = content if isinstance(content, Mapping) else {}
    if path.suffix == ".safetensors":
        advice = "save the model again by save_pretrained"
        about = read_json(path.with_name(SAVED_CONFIG), dict, {}, advice)
        content = {
            **(about.get("origin") or {}),
            "config": about.get("settings"),
            "camera_num": about.get("camera_num") or 1,
            "model": {key.removeprefix(SAVED_PREFIX): tensor for key, tensor in content.items()},
        }
    return path, content


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load a checkpoint's weights into `model`, without those of a score of patches that it has not, with a warning."""
    is_scored = any(name.startswith(SLIMMING) for name in model.state_dict())
    is_score = lambda name: not is_scored and name.startswith(SLIMMING)  # noqa: E731
    _, left_out = fill_model(model, checkpoint.model, checkpoint.path, is_score)
    if left_out:
        logger.warning(
            "the weights %s were trained with a score of patches (slimming), which is not used here, so it is left "
            "out.",
            checkpoint.path,
        )


def start_from(model: nn.Module, checkpoint: Checkpoint, has_same_classes: bool = False) -> str:
    """Load a checkpoint's weights as the start of a training → a sentence on what of the model and of the checkpoint is left.
    Classifiers start anew but for `has_same_classes`, embeddings of cameras where their number is another, and parts that the
    checkpoint lacks. The backbone must fit."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    weights = {
        name: tensor
        for name, tensor in checkpoint.model.items()
        if name not in shapes
        or not (
            (name.endswith(CLASSIFIER) and not has_same_classes)
            or (name == CAMERAS and tensor.shape != shapes[name])
        )
    }
    is_other = lambda name: not name.startswith(OUR_BACKBONE)  # noqa: E731
    anew, unused = fill_model(model, weights, checkpoint.path, is_other)
    text = f"the weights are those of {checkpoint.path}"
    text += f", but of new ones: {', '.join(sorted(anew))}" if anew else ""
    return text + (f"; not used of it: {', '.join(sorted(unused))}" if unused else "")


def fill_model(
    model: nn.Module,
    weights: Mapping[str, torch.Tensor],
    path: str | Path,
    is_optional: Callable[[str], bool] = lambda name: False,
) -> tuple[list[str], list[str]]:
    """Load weights of the file `path` into `model`; → names of the model's that are left as they were, and of the file's that
    are left out: such optional ones as the other does not have."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    missing = [name for name in expected if name not in shapes]
    unknown = [name for name in shapes if name not in expected]
    problems = [f"{name} is missing" for name in missing if not is_optional(name)]
    problems += [f"{name} is not part of the model" for name in unknown if not is_optional(name)]
    problems += [
        f"{name} has the shape {shapes[name]}, not {shape}"
        for name, shape in expected.items()
        if shapes.get(name, shape) != shape
    ]
    if problems:
        more = f" … and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
        raise UserError(
            f"The weights {path} do not fit the configuration's model: "
            f"{'; '.join(problems[:MAX_NAMED])}{more}. Use the configuration that they were trained "
            "with (config.yml beside them), or other weights."
        )
    model.load_state_dict(weights, strict=False)
    return missing, unknown
