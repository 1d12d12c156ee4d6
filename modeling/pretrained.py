"""Pretrained weights into the backbone: MODEL.PRETRAIN_PATH_T (docs/method.md)."""
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import nn

from demo_sdtps.config import UserError
from demo_sdtps.config.common import CLIP_TRUNK
from demo_sdtps.modeling.backbone import Backbone
from demo_sdtps.modeling.weights import LOAD_ERRORS, Weights, clip_to_timm, tensors_of

HUB_TAGS = {"ViT-B-16": "vit_base_patch16_clip_quickgelu_224.openai",
            "vit_base_patch16_224": "vit_base_patch16_224.augreg2_in21k_ft_in1k"}
"""Named tags, because timm's default for a name may change, and is for CLIP another model under another licence."""

CLIP, CLIP_PREFIX = "clip", "visual."

RANDOM = "WARNING: MODEL.PRETRAIN_PATH_T is empty: the backbone starts from RANDOM weights, not pretrained ones"
NORM_BEFORE, PATCH = "norm_pre.weight", "patch_embed.proj.weight"


def load_pretrained(backbone: Backbone, transformer_type: str, source: str) -> str:
    """Fill the backbone from a file (TorchScript archive, state dict or safetensors), or from timm's hub for "hub".

    Returns a report, a warning where it has to be: how many tensors were loaded, resized and left at random. Raises
    `UserError` for a source that cannot be read, of which nothing fits, or which is another model's.
    """
    if not source:
        return RANDOM
    found = read_source(transformer_type, source)
    example = next(iter(found), "nothing at all")
    if any(name.startswith(CLIP_PREFIX) for name in found):
        # OpenAI's archive also holds the text tower, which has other names.
        found = dict(clip_to_timm(name.removeprefix(CLIP_PREFIX), tensor)
                     for name, tensor in found.items() if name.startswith(CLIP_PREFIX))
    expected = backbone.vit.state_dict()
    resized = []
    if _can_be_resized(found.get("pos_embed"), expected["pos_embed"]) and not _has_grid(found["pos_embed"], backbone.grid_size):
        found["pos_embed"] = resize_position(found["pos_embed"].float(), backbone.grid_size)
        resized.append("pos_embed")
    return fill(backbone.vit, found, transformer_type, source, resized, example)


def fill(model: nn.Module, found: Weights, name: str, source: str, resized: Sequence[str], example: str) -> str:
    """Put the weights that fit into `model`, which timm calls `name`; `resized` of them were, `example` is one of the source's.

    Returns the report, and raises `UserError`, as `load_pretrained` does.
    """
    expected = model.state_dict()
    fitting = {name: tensor.float() for name, tensor in found.items()
               if name in expected and tensor.shape == expected[name].shape}
    if not fitting:
        raise UserError(f"MODEL.PRETRAIN_PATH_T {source} holds no weights of {name}: none fits by name and shape "
                        f"(it holds {example}, …); give weights of this backbone, 'hub', or '' for random ones.")
    if reason := _other_model(found, expected):
        raise UserError(f"MODEL.PRETRAIN_PATH_T {source} holds weights of another model than {name}: {reason}; "
                        "give weights of this backbone, or set MODEL.TRANSFORMER_TYPE to theirs.")
    missing = sorted(expected.keys() - found.keys())
    reshaped = sorted(expected.keys() & found.keys() - fitting.keys())
    model.load_state_dict(fitting, strict=False)
    warning = "WARNING: incomplete " if missing or reshaped else ""
    return (f"{warning}pretrained weights {source}: {len(fitting)} of {len(expected)} tensors loaded, {len(resized)} resized"
            f"{_listed(resized)}, {len(missing)} missing{_listed(missing)}"
            + (f", {len(reshaped)} of another shape{_listed(reshaped)}" if reshaped else ""))


def _other_model(found: Weights, expected: Weights) -> str | None:
    """What tells that most weights fit by chance: Vision Transformers differ little, and would train on all the same."""
    if (NORM_BEFORE in found) != (NORM_BEFORE in expected):
        return f"there is {'a' if NORM_BEFORE in found else 'no'} norm before the blocks, as CLIP has it"
    patch = found.get(PATCH)
    if patch is not None and patch.shape != expected[PATCH].shape:
        return f"its patch embedding has the shape {tuple(patch.shape)}, not {tuple(expected[PATCH].shape)}"
    return None


def _can_be_resized(position: torch.Tensor | None, expected: torch.Tensor) -> bool:
    return position is not None and position.ndim == 3 and position.shape[1] > 1 and position.shape[2] == expected.shape[2]


def _has_grid(position: torch.Tensor, grid: tuple[int, int]) -> bool:
    """Whether a position embedding is one of this grid; as many positions as a square has are taken for that square's."""
    patches = position.shape[1] - 1
    side = math.isqrt(max(0, patches))
    return grid == (side, side) if side * side == patches else patches == grid[0] * grid[1]


def resize_position(position: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """Position embedding (1, 1 + side², C) of a square grid → (1, 1 + rows·columns, C): plain bilinear, class apart.

    Raises `UserError` where the positions are not those of a square grid and a class token.
    """
    side = math.isqrt(position.shape[1] - 1)
    if side * side != position.shape[1] - 1:
        raise UserError(f"The pretrained position embedding has {position.shape[1]} entries, which are no square grid and a "
                        "class token; give other weights.")
    patches = position[:, 1:].transpose(1, 2).unflatten(2, (side, side))
    patches = F.interpolate(patches, size=grid, mode="bilinear", align_corners=False, antialias=False)
    return torch.cat([position[:, :1], patches.flatten(2).transpose(1, 2)], dim=1)


def read_source(transformer_type: str, source: str) -> Weights:
    """The tensors of MODEL.PRETRAIN_PATH_T: of timm's hub for "hub", else of a file. Raises `UserError`."""
    if source == "hub":
        return _from_hub(transformer_type)
    return read_weights(Path(source), archives=CLIP in transformer_type or transformer_type == CLIP_TRUNK)


def read_weights(path: Path, archives: bool = True) -> Weights:
    """The tensors of a safetensors file, a state dict (possibly under a `CONTAINERS` key) or, with `archives`, a TorchScript
    archive, which is a program: OpenAI publishes CLIP as one, and nobody else's weights need it.

    Raises `UserError` for a file that is missing or none of these.
    """
    if not path.is_file():
        raise UserError(f"MODEL.PRETRAIN_PATH_T {path} does not exist; give a file with the backbone's weights, 'hub', or '' "
                        "for random ones.")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        return tensors_of(_read_torch(path, archives))
    except (*LOAD_ERRORS, SafetensorError):
        kinds = f"{'TorchScript archive, ' if archives else ''}state dict of plain tensors or safetensors file"
        raise UserError(f"MODEL.PRETRAIN_PATH_T {path} is no {kinds} (or it is damaged or cut short); give another file."
                        ) from None


def _listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})" if names else ""


def _read_torch(path: Path, archives: bool) -> Mapping:
    with warnings.catch_warnings():  # of TorchScript being old, which is no matter of the user's
        warnings.simplefilter("ignore")
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except LOAD_ERRORS:
            if not archives:
                raise
            content = torch.jit.load(path, map_location="cpu")
    return content.state_dict() if isinstance(content, torch.jit.ScriptModule) else content


def _from_hub(transformer_type: str) -> Weights:
    tag = HUB_TAGS.get(transformer_type, transformer_type)
    try:
        return timm.create_model(tag, pretrained=True).state_dict()
    except Exception as error:  # whatever the hub's client raises when it gets no answer
        raise UserError(f"MODEL.PRETRAIN_PATH_T is 'hub', but timm could not download {tag} ({type(error).__name__}); check "
                        "the network, or give a file.") from error
