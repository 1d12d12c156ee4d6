"""Pretrained weights into the backbone: MODEL.PRETRAIN_PATH_T (docs/method.md)."""

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import timm
import torch
from huggingface_hub import constants, utils
from timm.layers import resample_abs_pos_embed
from torch import nn

from demo_sdtps.config import UserError
from demo_sdtps.config.common import CLIP_BACKBONE, HUB, SCRATCH
from demo_sdtps.modeling.backbones import Backbone
from demo_sdtps.modeling.checkpoints.names import (
    THEIR_BACKBONE,
    Weights,
    backbone_weights,
    from_demo,
    load_file,
    named_tensors,
    rename,
)

HUB_TAGS = {
    CLIP_BACKBONE: "vit_base_patch16_clip_quickgelu_224.openai",
    "vit_base_patch16_224": "vit_base_patch16_224.augreg2_in21k_ft_in1k",
}
"""Fixed tags, because timm's default for a name may change, and for CLIP is another model under another licence."""

CLIP, CLIP_PREFIX = "clip", "visual."

RANDOM = {
    "": "WARNING: MODEL.PRETRAIN_PATH_T is empty: the backbone starts from RANDOM weights, not pretrained ones ('hub' "
    "downloads them, 'none' says that random ones are meant)",
    "none": "the backbone starts from random weights (MODEL.PRETRAIN_PATH_T none)",
}
"""The report on a backbone without pretrained weights, by MODEL.PRETRAIN_PATH_T."""
OTHERS = "'hub' to download them, or 'none' for random ones"


def load_pretrained(backbone: Backbone, transformer_type: str, source: str) -> str:
    """`load_tower` of the backbone, whose position embeddings are resized by `resize_position`."""

    def convert(weights: Weights) -> Weights:
        expected = backbone.vit.state_dict()
        weights, position = _timm_names(weights, expected), expected.get("pos_embed")
        if position is None or "pos_embed" not in weights:
            return weights
        prefix, actual = position.shape[1] - backbone.num_patches, weights["pos_embed"].float()
        side = math.isqrt(max(0, actual.shape[1] - prefix))
        if side**2 != actual.shape[1] - prefix or (side, side) == backbone.grid_size:
            return weights
        return weights | {"pos_embed": resize_position(actual, backbone.grid_size, prefix)}

    return load_tower(backbone.vit, transformer_type, source, convert)


def load_tower(
    model: nn.Module, name: str, source: str, convert: Callable[[Weights], Weights]
) -> str:
    """Fill timm's model `name` from a file (TorchScript archive, state dict or safetensors), from timm's hub for "hub", or not
    at all for "none" and "". `convert` gives the weights the model's names and shapes. Returns a report, or a warning: how many
    tensors were loaded, and which are left at random."""
    if source in RANDOM:
        return RANDOM[source]
    weights = read_source(name, source)
    first = next(iter(weights), "nothing at all")
    weights, expected = convert(weights), model.state_dict()
    fitting = {
        key: tensor.float()
        for key, tensor in weights.items()
        if key in expected and tensor.shape == expected[key].shape
    }
    # Most names and shapes of Vision Transformers are alike; these two tell CLIP's, and other sizes of patches.
    telling = {"norm_pre.weight", "patch_embed.proj.weight"}
    if not fitting or telling & {*weights, *expected} - {*fitting}:
        raise UserError(
            f"MODEL.PRETRAIN_PATH_T {source} holds weights of another model than {name} (it holds {first}, …); give weights of "
            f"this backbone, {OTHERS}, or set MODEL.TRANSFORMER_TYPE to theirs."
        )
    model.load_state_dict(fitting, strict=False)
    report = f"pretrained weights {source}: {len(fitting)} of {len(expected)} tensors loaded"
    left = sorted({*expected} - {*fitting})
    return f"WARNING: incomplete {report}, not {', '.join(left)}" if left else report


def _timm_names(weights: Weights, expected: Weights) -> Weights:
    """Published weights under timm's names, as a model with the tensors `expected` has them."""
    if any(name.startswith(CLIP_PREFIX) for name in weights):
        # OpenAI's archive also holds the text encoder, under other names.
        tower = [(CLIP_PREFIX, THEIR_BACKBONE)]
        theirs = {rename(name, tower): tensor for name, tensor in weights.items()}
        weights = backbone_weights(from_demo(theirs))
    # timm calls the last norm fc_norm in models that average the tokens.
    last = [("fc_norm.", "norm.")]
    return {
        name if name in expected else rename(name, last): tensor for name, tensor in weights.items()
    }


def resize_position(position: torch.Tensor, grid: tuple[int, int], prefix: int = 1) -> torch.Tensor:
    """Position embedding (1, P + side², C) of a square grid → (1, P + rows·columns, C), bilinear, not antialiased. The first P
    = `prefix` positions, of class token and registers, stay as they are."""
    return resample_abs_pos_embed(
        position, list(grid), num_prefix_tokens=prefix, interpolation="bilinear", antialias=False
    )


def read_source(transformer_type: str, source: str) -> Weights:
    """The tensors of MODEL.PRETRAIN_PATH_T: from timm's hub for "hub", else of a safetensors file, a state dict (possibly under
    a `CONTAINERS` key) or, for CLIP, a TorchScript archive."""
    tag = HUB_TAGS.get(transformer_type, transformer_type)
    if source == HUB:
        return _from_hub(tag)
    path = Path(source)
    if not path.is_file():
        raise UserError(
            f"MODEL.PRETRAIN_PATH_T {path} does not exist; give a file with the backbone's weights, {OTHERS}."
        )
    with suppress(ValueError):
        return named_tensors(load_file(path))
    # An archive is a program, so only CLIP's weights, which OpenAI publishes as one, may come in it.
    if CLIP in tag:
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript's deprecation does not concern the user
            return named_tensors(torch.jit.load(path, map_location="cpu").state_dict())
    raise UserError(
        f"MODEL.PRETRAIN_PATH_T {path} is no state dict of plain tensors or safetensors file, nor OpenAI's archive of CLIP for "
        "its backbone, or it is damaged; give another file."
    )


def _from_hub(tag: str) -> Weights:
    """The weights that timm downloads, or finds in the cache of the Hugging Face hub. A hub that does not answer in three
    seconds is not asked again, as its client does for a minute."""
    was_offline = constants.HF_HUB_OFFLINE
    try:
        utils.get_session().head(constants.ENDPOINT, timeout=3)
    except Exception:  # the client raises many types
        constants.HF_HUB_OFFLINE = True
    try:
        return timm.create_model(tag, pretrained=True).state_dict()
    except Exception as error:  # timm raises RuntimeError where there are none
        raise UserError(
            f"MODEL.PRETRAIN_PATH_T is 'hub', but timm could not download {tag} ({type(error).__name__}): no weights of it are "
            f"published, or the network fails; give the path of a file, or 'none' for random ones; {SCRATCH}."
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = was_offline
