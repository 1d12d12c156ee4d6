"""Files of weights, and the names in them: DeMo's, and ours, which are timm's inside the backbone (docs/method.md)."""

import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from demo_sdtps.modeling.modalities import SUBSETS
from demo_sdtps.runtime.errors import UserError

FUSION = "generalFusion."
EXPERT = re.compile(re.escape(FUSION) + r"moe\.experts\.(\d+)\.")

ATTENTION = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
"""DeMo's names of an attention's weights; ours have no dot."""
EXPERT_NAMES = {
    "0.weight": "expert_weight",
    "0.bias": "expert_bias",
    **{f"2.{leaf}": f"norm.{leaf}" for leaf in nn.BatchNorm1d(1).state_dict()},
}

QUERY, NORM, COUNTER = "hdm.query", "atmoe.norm.", "atmoe.norm.num_batches_tracked"
Weights = dict[str, torch.Tensor]
CONTAINERS = ("model", "state_dict")  # keys under which training code stores the weights
CLIP_MARK = "BACKBONE.base.conv1.weight"  # a key of DeMo's CLIP backbone alone; DeMo's ImageNet backbone has timm's names
# Names in DeMo's CLIP backbone (below BACKBONE.base.) and in timm's: their beginnings, and parts of them.
CLIP_STARTS = {
    "conv1.": "patch_embed.proj.",
    "class_embedding": "cls_token",
    "positional_embedding": "pos_embed",
    "ln_pre.": "norm_pre.",
    "ln_post.": "norm.",
    "transformer.resblocks.": "blocks.",
    "proj": "head.weight",  # CLIP multiplies from the right, a Linear layer from the left
}
CLIP_PARTS = {
    ".ln_1.": ".norm1.",
    ".ln_2.": ".norm2.",
    ".attn.in_proj_": ".attn.qkv.",
    ".attn.out_proj.": ".attn.proj.",
    ".mlp.c_fc.": ".mlp.fc1.",
    ".mlp.c_proj.": ".mlp.fc2.",
}
THEIR_BACKBONE = "BACKBONE.base."
OUR_BACKBONE = "backbone.vit."
PROJECTION, PREFIX_TOKEN, POSITION = (
    OUR_BACKBONE + name for name in ("head.weight", "cls_token", "pos_embed")
)
FORMER = ("trunk.", "backbone.")
"""Beginnings of the backbone's names in 0.1.0 and since."""


def fusion_parts(heads: int) -> dict[str, list[str]]:
    """Our stacked tensors of HDM and of ATMoE with `heads` heads → DeMo's names of their parts, in their order."""
    parts = {QUERY: [f"{FUSION}{subset}_token" for subset in SUBSETS]}
    for leaf in ATTENTION:
        ours = f"hdm.{leaf.replace('.', '_')}"
        parts[ours] = [f"{FUSION}{subset}.{leaf}" for subset in SUBSETS]
    places = [(head, feature) for head in range(heads) for feature in range(len(SUBSETS))]
    for leaf, ours in EXPERT_NAMES.items() if heads else ():
        experts = (f"{FUSION}moe.experts.{head}.expertHead.{feature}" for head, feature in places)
        parts[f"atmoe.{ours}"] = [f"{expert}.mlp.{leaf}" for expert in experts]
    return parts


def stack_fusion(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """DeMo's weights with HDM's and ATMoE's stacked under our names, after the others; as they are where a part is missing."""
    heads = {int(match[1]) for match in map(EXPERT.match, weights) if match}
    parts = fusion_parts(1 + max(heads, default=-1))
    theirs = [name for names in parts.values() for name in names]
    if not weights.keys() >= {*theirs}:
        return dict(weights)
    stacked = {name: tensor for name, tensor in weights.items() if name not in theirs}
    for ours, names in parts.items():
        stack = torch.stack([weights[name] for name in names])
        if ours == COUNTER:  # one BatchNorm has one counter; every expert of DeMo sees every batch
            stack = stack[0]
        elif ours.startswith(NORM):
            stack = stack.flatten()
        stacked[ours] = stack.flatten(1) if ours == QUERY else stack
    return stacked


def unstack_fusion(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of `stack_fusion`: HDM's and ATMoE's weights after the others."""
    if len(weights.get(QUERY, SUBSETS)) != len(SUBSETS):
        raise UserError(
            "HDM of these weights is of fewer modalities (MODEL.MODALITIES) than DeMo's; convert a model of all three."
        )
    parts = fusion_parts(len(weights.get("atmoe.expert_weight", ())) // len(SUBSETS))
    unstacked = {name: tensor for name, tensor in weights.items() if name not in parts}
    for ours in [name for name in parts if name in weights]:
        stack, count = weights[ours], len(parts[ours])
        if ours == COUNTER:
            stack = stack.expand(count)
        elif ours.startswith(NORM):
            stack = stack.view(count, -1)
        elif ours == QUERY:
            stack = stack.view(count, 1, 1, -1)
        # Clones: views would be saved with the whole stack.
        unstacked |= {name: row.clone() for name, row in zip(parts[ours], stack, strict=True)}
    return unstacked


def load_file(path: Path) -> object:
    """Content of a .safetensors file, or of one of torch.save: plain tensors, numbers and texts; no code runs. Raises
    `ValueError` for another format or a damaged file, and `OSError` for one that may not be opened."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        if zipfile.is_zipfile(path):  # files from before torch 1.6 are none
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():  # torch does not compare checksums
                    raise ValueError(f"{damaged} in {path} is damaged")
        with warnings.catch_warnings():  # torch warns of a TorchScript archive before it raises
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        # Unpickling random bytes fails in many ways, also as an `OSError` without a file.
        if isinstance(error, OSError) and error.filename:
            raise
        raise ValueError(f"{path} is of another format, or damaged") from error


def named_tensors(content: object) -> Weights:
    """The named tensors in a file's content, from a `CONTAINERS` key if there is one, without DataParallel's `module.`."""
    if not isinstance(content, Mapping):
        return {}
    inner = (content.get(key) for key in CONTAINERS)
    content = next((part for part in inner if isinstance(part, Mapping)), content)
    return {
        name.removeprefix("module."): value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, torch.Tensor)
    }


def from_demo(state_dict: Mapping[str, torch.Tensor]) -> Weights:
    """A DeMo checkpoint's weights under our names, without `module.`; unknown names stay, and those of an incomplete HDM."""
    state_dict, weights = named_tensors(state_dict), {}
    is_clip = CLIP_MARK in state_dict
    for name, tensor in stack_fusion(state_dict).items():
        name = rename(name, _prefixes(is_clip))
        for theirs, ours in CLIP_PARTS.items() if is_clip else ():
            name = name.replace(theirs, ours, 1)
        if is_clip and name == PROJECTION:
            tensor = tensor.T.contiguous()
        elif is_clip and name in (PREFIX_TOKEN, POSITION):  # (C) or (N, C) → (1, N, C)
            tensor = tensor.reshape(1, -1, tensor.shape[-1])
        weights[name] = tensor
    return weights


def to_demo(state_dict: Mapping[str, torch.Tensor]) -> Weights:
    """Our weights under DeMo's names: the inverse of `from_demo`."""
    is_clip, weights = PROJECTION in state_dict, {}  # other backbones have no projection
    prefixes = [(ours, theirs) for theirs, ours in _prefixes(is_clip)]
    for name, tensor in unstack_fusion(state_dict).items():
        if is_clip and name == PROJECTION:
            tensor = tensor.T.contiguous()
        elif is_clip and name in (PREFIX_TOKEN, POSITION):
            tensor = tensor.flatten() if name == PREFIX_TOKEN else tensor.squeeze(0)
        for theirs, ours in CLIP_PARTS.items() if is_clip else ():
            name = name.replace(ours, theirs, 1)
        weights[rename(name, prefixes)] = tensor
    return weights


def rename(name: str, prefixes: Iterable[tuple[str, str]]) -> str:
    """The name with the first of these beginnings that it has, if any, changed: (old, new)."""
    old, new = next((pair for pair in prefixes if name.startswith(pair[0])), ("", ""))
    return new + name.removeprefix(old)


def _prefixes(is_clip: bool) -> list[tuple[str, str]]:
    """First parts of names: DeMo's and ours. The camera embedding has another name beside CLIP's backbone."""
    cameras = [f"{THEIR_BACKBONE}sie_embed", "BACKBONE.cv_embed"]
    starts = CLIP_STARTS if is_clip else {}
    gate = {"linear_re": "gate", "q_": "query", "k_": "key"}
    pife = {"rgb": "RGB", "nir": "NI", "tir": "TI"}
    heads = {"": "original", "_r": "RGB", "_n": "NI", "_t": "TI", "_moe": "moe", "_sdtps": "sdtps"}
    gates = f"{FUSION}moe.gating_network.gate."
    return [
        *((name, "backbone.camera_embedding") for name in (cameras[::-1] if is_clip else cameras)),
        *((THEIR_BACKBONE + theirs, OUR_BACKBONE + ours) for theirs, ours in starts.items()),
        (THEIR_BACKBONE, OUR_BACKBONE),
        *((f"{gates}{theirs}.", f"atmoe.{ours}.") for theirs, ours in gate.items()),
        *((f"{theirs}_reduce.", f"pife.reduce.{ours}.") for theirs, ours in pife.items()),
        *(
            (f"{layer}{suffix}.", f"heads.{head}.{layer}.")
            for suffix, head in heads.items()
            for layer in ("bottleneck", "classifier")
        ),
    ]


def backbone_weights(model: Weights) -> Weights:
    """The Vision Transformer's weights in timm's names."""
    return {
        name.removeprefix(OUR_BACKBONE): tensor
        for name, tensor in model.items()
        if name.startswith(OUR_BACKBONE)
    }
