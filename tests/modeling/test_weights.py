"""DeMo's checkpoint names to ours and back."""

import re

import pytest
import torch
from feature_stores import damage
from numeric import numpy_generator
from tiny import tiny_model

from demo_sdtps.config import UserError
from demo_sdtps.modeling.checkpoints.loading import read_checkpoint
from demo_sdtps.modeling.checkpoints.names import from_demo, load_file, to_demo, unknown_names
from tests.reference.fusion import MODALITIES_OF, Fusion

CLIP_NAMES = {
    "conv1.weight": "patch_embed.proj.weight",
    "class_embedding": "cls_token",
    "positional_embedding": "pos_embed",
    "ln_pre.weight": "norm_pre.weight",
    "ln_pre.bias": "norm_pre.bias",
    "transformer.resblocks.0.ln_1.weight": "blocks.0.norm1.weight",
    "transformer.resblocks.0.attn.in_proj_weight": "blocks.0.attn.qkv.weight",
    "transformer.resblocks.0.attn.in_proj_bias": "blocks.0.attn.qkv.bias",
    "transformer.resblocks.0.attn.out_proj.weight": "blocks.0.attn.proj.weight",
    "transformer.resblocks.11.ln_2.bias": "blocks.11.norm2.bias",
    "transformer.resblocks.11.mlp.c_fc.weight": "blocks.11.mlp.fc1.weight",
    "transformer.resblocks.11.mlp.c_proj.bias": "blocks.11.mlp.fc2.bias",
    "ln_post.weight": "norm.weight",
    "ln_post.bias": "norm.bias",
    "proj": "head.weight",
}


def backbone_names(camera, names):
    """DeMo's names of a backbone and of its camera embedding → ours."""
    inner = {f"BACKBONE.base.{theirs}": f"backbone.vit.{ours}" for theirs, ours in names.items()}
    return {camera: "backbone.camera_embedding", **inner}


CLIP_BACKBONE = backbone_names("BACKBONE.cv_embed", CLIP_NAMES)
TIMM_NAMES = [*CLIP_NAMES.values(), "patch_embed.proj.bias"]
IMAGENET_BACKBONE = backbone_names(
    "BACKBONE.base.sie_embed", {name: name for name in TIMM_NAMES if name != "head.weight"}
)
HEADS = {"": "original", "_r": "RGB", "_n": "NI", "_t": "TI", "_moe": "moe", "_sdtps": "sdtps"}
LAYERS = [
    f"bottleneck.{leaf}" for leaf in ("weight", "bias", "running_mean", "num_batches_tracked")
]
GATES = {
    "linear_re.0.weight": "gate.0.weight",
    "linear_re.0.bias": "gate.0.bias",
    "linear_re.2.running_var": "gate.2.running_var",
    "linear_re.2.num_batches_tracked": "gate.2.num_batches_tracked",
    "q_.weight": "query.weight",
    "k_.weight": "key.weight",
}
REST = {
    **{
        layer.replace(".", f"{suffix}."): f"heads.{head}.{layer}"
        for suffix, head in HEADS.items()
        for layer in (*LAYERS, "classifier.weight")
    },
    **{
        f"{stem}_reduce.{leaf}": f"pife.reduce.{modality}.{leaf}"
        for stem, modality in (("rgb", "RGB"), ("nir", "NI"), ("tir", "TI"))
        for leaf in ("0.weight", "1.bias")
    },
    **{
        f"generalFusion.moe.gating_network.gate.{theirs}": f"atmoe.{ours}"
        for theirs, ours in GATES.items()
    },
    "sdtps.nir_aggr.weight.1.weight": "sdtps.nir_aggr.weight.1.weight",
    "sdtps.rgb_sparse.score_predictor.0.bias": "sdtps.rgb_sparse.score_predictor.0.bias",
}
UNKNOWN = (
    *("generalFusion.other_token", "bottleneck_new.weight", "classifier_r2.weight"),
    *("logit_scale", "rgb_reduced.0.weight"),
)
SHAPES = {
    "BACKBONE.base.class_embedding": (6,),
    "BACKBONE.base.positional_embedding": (10, 6),
    "BACKBONE.base.conv1.weight": (6, 3, 2, 2),
    "BACKBONE.base.proj": (6, 4),
    "BACKBONE.base.cls_token": (1, 1, 6),
    "BACKBONE.base.pos_embed": (1, 10, 6),
}
FUSION = ("MODEL.HDM", True, "MODEL.ATM", True, "MODEL.HEAD", 4)


def random_weights(names, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.tensor(7)
        if name.endswith("tracked")
        else torch.randn(
            SHAPES.get(name, (3, 4) if name.endswith("weight") else (5,)), generator=generator
        )
        for name in names
    }


@pytest.mark.parametrize("backbone", [CLIP_BACKBONE, IMAGENET_BACKBONE], ids=["CLIP", "ImageNet"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_demos_names_and_back(backbone, prefix):
    names = backbone | REST | {name: name for name in UNKNOWN}
    theirs = random_weights(names, seed=1)
    ours = from_demo({prefix + name: tensor for name, tensor in theirs.items()})
    assert list(ours) == list(names.values())
    for name, tensor in theirs.items():
        if name in ("BACKBONE.base.class_embedding", "BACKBONE.base.positional_embedding"):
            tensor = tensor.reshape(1, -1, 6)
        assert torch.equal(ours[names[name]], tensor.T if name.endswith("base.proj") else tensor), (
            name
        )
        assert ours[names[name]].is_contiguous()

    assert unknown_names(ours) == list(UNKNOWN)
    assert_same(to_demo(ours), theirs)


def assert_same(actual, expected):
    """The same names, the same tensors bit by bit."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(actual[name], tensor), name


def fusion_weights(width=64, heads=4, dtype=torch.float32, seed=2):
    """DeMo's HDM and ATMoE (without heads: HDM alone) between what stands around them in its checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    weights = {"BACKBONE.base.norm.weight": torch.ones(3)}
    for name, tensor in Fusion(width, heads).state_dict().items():
        weights[f"generalFusion.{name}"] = (
            torch.tensor(1234567)
            if name.endswith("tracked")
            else torch.randn(tensor.shape, generator=generator).to(dtype)
        )
    return weights | {"classifier_moe.weight": torch.zeros(2, 7)}


@pytest.mark.parametrize(
    ("width", "heads", "dtype"),
    [(64, 4, torch.float32), (192, 12, torch.float16), (128, None, torch.float32)],
)
def test_demos_fusion_and_back(width, heads, dtype):
    """Seven attentions and 7·HEAD experts, head by head, become places of stacked tensors."""
    theirs = fusion_weights(width, heads, dtype)
    ours = from_demo(theirs)
    assert unknown_names(ours) == []
    assert all(
        tensor.dtype in (dtype, torch.int64)
        for name, tensor in ours.items()
        if name.startswith(("hdm.", "atmoe."))
    )
    fusion = {name.removeprefix("generalFusion."): tensor for name, tensor in theirs.items()}
    for place, subset in enumerate(MODALITIES_OF):
        assert torch.equal(ours["hdm.query"][place], fusion[f"{subset}_token"][0, 0])
        for leaf in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"):
            assert torch.equal(
                ours[f"hdm.{leaf.replace('out_proj.', 'out_proj_')}"][place],
                fusion[f"{subset}.{leaf}"],
            )
    width //= heads or 1
    for place in range(7 * (heads or 0)):
        expert = f"moe.experts.{place // 7}.expertHead.{place % 7}.mlp"
        assert torch.equal(ours["atmoe.expert_weight"][place], fusion[f"{expert}.0.weight"])
        assert torch.equal(ours["atmoe.expert_bias"][place], fusion[f"{expert}.0.bias"])
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            assert torch.equal(
                ours[f"atmoe.norm.{leaf}"][place * width : (place + 1) * width],
                fusion[f"{expert}.2.{leaf}"],
            )
    if heads:
        assert ours["atmoe.norm.num_batches_tracked"] == 1234567

    back = to_demo(ours)
    assert_same(back, theirs)
    for name, tensor in back.items():  # a view would be saved with the whole stack
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), name


def test_a_fusion_that_is_not_whole_is_reported(tmp_path):
    theirs = to_demo(tiny_model(*FUSION).state_dict())
    missing = "generalFusion.moe.experts.2.expertHead.5.mlp.0.weight"
    del theirs[missing]
    torch.save(theirs, tmp_path / "broken.pth")
    with pytest.raises(
        UserError, match=rf"broken.pth cannot be used: {re.escape(missing)} is missing"
    ):
        read_checkpoint(tmp_path / "broken.pth")


@pytest.mark.parametrize("without_weights", [False, True])
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path, without_weights):
    """Anywhere in a file: torch itself reads other weights from most places."""
    path, draws = tmp_path / "flipped.pth", numpy_generator(3)
    content = {"model": tiny_model().state_dict(), "config": "MODEL: {}"}
    torch.save(content, path)
    whole, refused = path.read_bytes(), 0
    for _ in range(60):
        damage(path, draws, zeroes=False)
        try:
            loaded = load_file(path, without_weights)
        except ValueError:
            refused += 1
        else:  # between the entries
            assert loaded["config"] == content["config"]
            assert_same(loaded["model"], content["model"])
        path.write_bytes(whole)
    assert refused > 40


@pytest.mark.parametrize("without_weights", [False, True])
def test_a_file_that_is_cut_short_anywhere_is_told_so(tmp_path, without_weights):
    path = tmp_path / "cut.pth"
    torch.save({"model": tiny_model().state_dict()}, path)
    content = path.read_bytes()
    for size in range(0, len(content) - 1, len(content) // 40):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="another format, or damaged"):
            load_file(path, without_weights)


def test_a_checkpoint_of_the_first_release_is_read(tmp_path):
    """Whose backbone was called trunk."""
    weights = tiny_model("MODEL.USE_SDTPS", True).state_dict()
    former = {re.sub("^backbone", "trunk", name): tensor for name, tensor in weights.items()}
    torch.save({"model": former}, tmp_path / "last.pth")
    assert (
        former != weights and read_checkpoint(tmp_path / "last.pth").model.keys() == weights.keys()
    )
