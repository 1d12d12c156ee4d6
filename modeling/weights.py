"""Checkpoint names: DeMo's, and ours, which are timm's inside the backbone (docs/method.md)."""
import pickle
import re
import struct
from collections.abc import Mapping

import torch

from demo_sdtps.modeling.fusion_weights import FUSION, stack_fusion, unstack_fusion
from demo_sdtps.modeling.selectors import SELECTORS

Weights = dict[str, torch.Tensor]

LOAD_ERRORS = (OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
               ArithmeticError, MemoryError, struct.error, pickle.UnpicklingError)
"""What torch.load raises for damaged files and other formats: unpickling random bytes fails in many ways."""

CONTAINERS = ("model", "state_dict")
"""Keys under which training code stores the weights."""

CLIP_MARK = "BACKBONE.base.conv1.weight"
"""A key of DeMo's CLIP backbone alone; DeMo's ImageNet backbone has timm's names."""

# Parts of names in DeMo's CLIP backbone (below BACKBONE.base.) and in timm's.
CLIP_NAMES = (
    ("conv1.", "patch_embed.proj."),
    ("class_embedding", "cls_token"),
    ("positional_embedding", "pos_embed"),
    ("ln_pre.", "norm_pre."),
    ("ln_post.", "norm."),
    ("transformer.resblocks.", "blocks."),
    (".ln_1.", ".norm1."),
    (".ln_2.", ".norm2."),
    (".attn.in_proj_", ".attn.qkv."),
    (".attn.out_proj.", ".attn.proj."),
    (".mlp.c_fc.", ".mlp.fc1."),
    (".mlp.c_proj.", ".mlp.fc2."),
)
CLIP_PROJECTION = ("proj", "head.weight")
"""Its names in CLIP and in timm; transposed, because CLIP multiplies from the right and a Linear layer from the left."""

GATE_NAMES = {"linear_re.": "gate.", "q_.": "query.", "k_.": "key."}

PARTS = ("backbone", "pife", "hdm", "atmoe", "heads")
"""First components of our names, beside those of the SELECTORS."""

PIFE_NAMES = {"rgb_reduce": "RGB", "nir_reduce": "NI", "tir_reduce": "TI"}
HEAD_NAMES = {"": "original", "_r": "RGB", "_n": "NI", "_t": "TI", "_moe": "moe"}
"""DeMo's suffix → our name; a selector's is an underscore and its name."""


def current_names(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Weights under this version's names: version 0.1 called the backbone "trunk"."""
    return {re.sub(r"^trunk\.", "backbone.", name): tensor for name, tensor in weights.items()}


def tensors_of(content: object) -> Weights:
    """The named tensors in a file's content, from a `CONTAINERS` key if there is one, under `current_names` and without
    DataParallel's `module.`."""
    if not isinstance(content, Mapping):
        return {}
    content = next((content[key] for key in CONTAINERS if isinstance(content.get(key), Mapping)), content)
    return current_names({name.removeprefix("module."): value for name, value in content.items()
                          if isinstance(name, str) and isinstance(value, torch.Tensor) and _is_stored(value)})


def _is_stored(tensor: torch.Tensor) -> bool:
    """Whether the file holds every element of a tensor: with strides of 0 a few bytes can claim to exceed all memory."""
    return (tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
            and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes())


def from_demo(state_dict: Mapping[str, torch.Tensor]) -> Weights:
    """A DeMo checkpoint's weights under our names, without `module.`; unknown names stay.

    Raises `ValueError` for incomplete weights of HDM or ATMoE.
    """
    state_dict = {name.removeprefix("module."): tensor for name, tensor in state_dict.items()}
    is_clip = CLIP_MARK in state_dict
    return dict(_from_demo(name, tensor, is_clip) for name, tensor in stack_fusion(state_dict).items())


def to_demo(state_dict: Mapping[str, torch.Tensor]) -> Weights:
    """Our weights under DeMo's names: the inverse of `from_demo`."""
    is_clip = f"backbone.vit.{CLIP_PROJECTION[1]}" in state_dict  # other backbones have no projection
    return dict(_to_demo(name, tensor, is_clip) for name, tensor in unstack_fusion(state_dict).items())


def unknown_names(state_dict: Mapping[str, torch.Tensor]) -> list[str]:
    """Those of our names (after `from_demo`) that belong to no part of the model."""
    return [name for name in state_dict if name.partition(".")[0] not in {*PARTS, *SELECTORS}]


def is_demo(state_dict: Mapping[str, torch.Tensor]) -> bool:
    """Whether these weights have DeMo's names."""
    return any(name.removeprefix("module.").startswith("BACKBONE.") for name in state_dict)


def clip_to_timm(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """One weight of CLIP's image tower (CLIP's name, without prefix) under timm's name and in timm's shape."""
    if name == CLIP_PROJECTION[0]:
        return CLIP_PROJECTION[1], tensor.T.contiguous()
    for theirs, ours in CLIP_NAMES:
        name = name.replace(theirs, ours, 1)
    if name in ("cls_token", "pos_embed") and tensor.ndim:  # ours have a batch axis: (C) or (N, C) → (1, N, C)
        tensor = tensor.reshape(1, -1, tensor.shape[-1])
    return name, tensor


def _timm_to_clip(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    if name == CLIP_PROJECTION[1]:
        return CLIP_PROJECTION[0], tensor.T.contiguous()
    if name in ("cls_token", "pos_embed"):
        tensor = tensor.squeeze(0).squeeze(0) if name == "cls_token" else tensor.squeeze(0)
    for theirs, ours in CLIP_NAMES:
        if ours == "norm." and not name.startswith("norm."):  # the final norm, not one inside a block
            continue
        name = name.replace(ours, theirs, 1)
    return name, tensor


def _from_demo(name: str, tensor: torch.Tensor, is_clip: bool) -> tuple[str, torch.Tensor]:
    if name in ("BACKBONE.cv_embed", "BACKBONE.base.sie_embed"):
        return "backbone.camera_embedding", tensor
    if name.startswith("BACKBONE.base."):
        name = name.removeprefix("BACKBONE.base.")
        if is_clip:
            name, tensor = clip_to_timm(name, tensor)
        return f"backbone.vit.{name}", tensor
    for theirs, ours in GATE_NAMES.items():
        name = name.replace(f"{FUSION}moe.gating_network.gate.{theirs}", f"atmoe.{ours}")
    stem, _, rest = name.partition(".")
    if stem in PIFE_NAMES:
        return f"pife.reduce.{PIFE_NAMES[stem]}.{rest}", tensor
    head = re.fullmatch(r"(bottleneck|classifier)(_\w+)?", stem)
    if head and (head[2] or "") in _head_names():
        return f"heads.{_head_names()[head[2] or '']}.{head[1]}.{rest}", tensor
    return name, tensor


def _to_demo(name: str, tensor: torch.Tensor, is_clip: bool) -> tuple[str, torch.Tensor]:
    if name == "backbone.camera_embedding":
        return ("BACKBONE.cv_embed" if is_clip else "BACKBONE.base.sie_embed"), tensor
    if name.startswith("backbone.vit."):
        name = name.removeprefix("backbone.vit.")
        if is_clip:
            name, tensor = _timm_to_clip(name, tensor)
        return f"BACKBONE.base.{name}", tensor
    for theirs, ours in GATE_NAMES.items():
        if name.startswith(f"atmoe.{ours}"):
            return name.replace(f"atmoe.{ours}", f"{FUSION}moe.gating_network.gate.{theirs}"), tensor
    if name.startswith("pife.reduce."):
        _, _, modality, rest = name.split(".", 3)
        stem = next(stem for stem, known in PIFE_NAMES.items() if known == modality)
        return f"{stem}.{rest}", tensor
    if name.startswith("heads."):
        _, head, part, rest = name.split(".", 3)
        suffixes = [suffix for suffix, known in _head_names().items() if known == head]
        return (f"{part}{suffixes[0]}.{rest}" if suffixes else name), tensor
    return name, tensor


def _head_names() -> dict[str, str]:
    return HEAD_NAMES | {f"_{name}": name for name in SELECTORS}
