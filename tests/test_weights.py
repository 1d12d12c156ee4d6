"""DeMo's checkpoint names to ours and back."""

import pytest
import torch
from tiny import tiny_model

from modeling.weights import from_demo, is_demo, to_demo

CLIP_TRUNK = {
    "BACKBONE.cv_embed": "trunk.camera_embedding",
    "BACKBONE.base.conv1.weight": "trunk.vit.patch_embed.proj.weight",
    "BACKBONE.base.class_embedding": "trunk.vit.cls_token",
    "BACKBONE.base.positional_embedding": "trunk.vit.pos_embed",
    "BACKBONE.base.ln_pre.weight": "trunk.vit.norm_pre.weight",
    "BACKBONE.base.ln_pre.bias": "trunk.vit.norm_pre.bias",
    "BACKBONE.base.transformer.resblocks.0.ln_1.weight": "trunk.vit.blocks.0.norm1.weight",
    "BACKBONE.base.transformer.resblocks.0.attn.in_proj_weight": "trunk.vit.blocks.0.attn.qkv.weight",
    "BACKBONE.base.transformer.resblocks.0.attn.in_proj_bias": "trunk.vit.blocks.0.attn.qkv.bias",
    "BACKBONE.base.transformer.resblocks.0.attn.out_proj.weight": "trunk.vit.blocks.0.attn.proj.weight",
    "BACKBONE.base.transformer.resblocks.11.ln_2.bias": "trunk.vit.blocks.11.norm2.bias",
    "BACKBONE.base.transformer.resblocks.11.mlp.c_fc.weight": "trunk.vit.blocks.11.mlp.fc1.weight",
    "BACKBONE.base.transformer.resblocks.11.mlp.c_proj.bias": "trunk.vit.blocks.11.mlp.fc2.bias",
    "BACKBONE.base.ln_post.weight": "trunk.vit.norm.weight",
    "BACKBONE.base.ln_post.bias": "trunk.vit.norm.bias",
    "BACKBONE.base.proj": "trunk.vit.head.weight",
}
IMAGENET_TRUNK = {
    "BACKBONE.base.sie_embed": "trunk.camera_embedding",
    **{f"BACKBONE.base.{name}": f"trunk.vit.{name}" for name in (
        "cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias", "blocks.0.norm1.weight",
        "blocks.0.attn.qkv.weight", "blocks.11.attn.proj.bias", "blocks.11.mlp.fc1.weight", "norm.weight", "norm.bias")},
}
HEAD_SUFFIXES = {"": "original", "_r": "RGB", "_n": "NI", "_t": "TI", "_moe": "moe", "_sdtps": "sdtps"}
REST = {
    **{f"{part}{suffix}.{leaf}": f"heads.{head}.{part}.{leaf}" for suffix, head in HEAD_SUFFIXES.items() for part, leaf in (
        ("bottleneck", "weight"), ("bottleneck", "bias"), ("bottleneck", "running_mean"),
        ("bottleneck", "num_batches_tracked"), ("classifier", "weight"))},
    **{f"{stem}_reduce.{leaf}": f"pife.reduce.{modality}.{leaf}"
       for stem, modality in (("rgb", "RGB"), ("nir", "NI"), ("tir", "TI")) for leaf in ("0.weight", "1.bias")},
    "sdtps.nir_aggr.weight.1.weight": "sdtps.nir_aggr.weight.1.weight",
    "sdtps.rgb_sparse.score_predictor.0.bias": "sdtps.rgb_sparse.score_predictor.0.bias",
}
UNKNOWN = {name: name for name in ("generalFusion.r_token", "bottleneck_new.weight", "classifier_r2.weight", "logit_scale",
                                   "rgb_reduced.0.weight")}
SHAPES = {"BACKBONE.base.class_embedding": (6,), "BACKBONE.base.positional_embedding": (10, 6),
          "BACKBONE.base.conv1.weight": (6, 3, 2, 2), "BACKBONE.base.proj": (6, 4), "BACKBONE.base.cls_token": (1, 1, 6),
          "BACKBONE.base.pos_embed": (1, 10, 6)}


pytestmark = [pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:FutureWarning"),
              pytest.mark.filterwarnings("ignore:.*looks like a TorchScript archive:UserWarning")]


KINDS = pytest.mark.parametrize("trunk", [CLIP_TRUNK, IMAGENET_TRUNK], ids=["CLIP", "ImageNet"])


def random_weights(names, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.tensor(7) if name.endswith("tracked")
            else torch.randn(SHAPES.get(name, (3, 4) if name.endswith("weight") else (5,)), generator=generator)
            for name in names}


@KINDS
@pytest.mark.parametrize("prefix", ["", "module."])
def test_demos_names_and_back(trunk, prefix):
    names = trunk | REST | UNKNOWN
    theirs = random_weights(names, seed=1)
    ours = from_demo({prefix + name: tensor for name, tensor in theirs.items()})
    assert list(ours) == list(names.values())
    for name, tensor in theirs.items():
        if name in ("BACKBONE.base.class_embedding", "BACKBONE.base.positional_embedding"):
            tensor = tensor.reshape(1, -1, 6)
        assert torch.equal(ours[names[name]], tensor.T if name.endswith("base.proj") else tensor), name
        assert ours[names[name]].is_contiguous()

    back = to_demo(ours)
    assert list(back) == list(theirs)
    for name, tensor in theirs.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name


@pytest.mark.parametrize("direct", [0, 1])
def test_our_models_weights_and_back(direct):
    model = tiny_model("MODEL.DIRECT", direct)
    ours = model.state_dict()
    theirs = to_demo(ours)
    assert not any(name.startswith(("trunk.", "pife.", "heads.")) for name in theirs)
    assert is_demo(theirs)
    assert is_demo({f"module.{name}": tensor for name, tensor in theirs.items()})
    assert not is_demo(ours)
    assert {"bottleneck_sdtps.weight", "BACKBONE.base.sie_embed", "BACKBONE.base.blocks.5.mlp.fc2.weight"} <= theirs.keys()
    assert ("classifier.weight" in theirs) == (direct == 1)
    assert ("classifier_t.weight" in theirs) == (direct == 0)
    back = from_demo(theirs)
    assert list(back) == list(ours)
    assert all(torch.equal(back[name], ours[name]) for name in ours)
