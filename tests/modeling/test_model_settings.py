"""Configuration keys of the model whose effect golden cases and references do not show."""

import pytest
import torch
from timm.layers import DropPath
from tiny import CLIP_CONFIG, clip_model, random_images, tiny_model

from demo_sdtps.config import MODALITIES, load_cfg


def encode(model, seed=1):
    return model.forward_features(*random_images(seed))


@pytest.mark.parametrize("key", ["MODEL.DROP_OUT", "MODEL.ATT_DROP_RATE", "MODEL.DROP_PATH"])
@torch.no_grad()
def test_dropout_of_mlps_and_attention_acts_in_training_only(key):
    model = tiny_model(key, 0.4)
    block = model.backbone.vit.blocks[-1]
    rates = {
        "MODEL.DROP_OUT": block.mlp.drop2.p,
        "MODEL.ATT_DROP_RATE": block.attn.attn_drop.p,
        "MODEL.DROP_PATH": getattr(block.drop_path2, "drop_prob", 0.0),
    }
    assert rates == pytest.approx({name: 0.4 if name == key else 0.0 for name in rates})
    for is_training in (True, False):
        first, second = (encode(model.train(is_training)).tokens["TI"] for _ in range(2))
        assert torch.equal(first, second) is not is_training


@pytest.mark.parametrize("name", ["test_vit", "eva02_tiny_patch14_224"])
def test_the_backbone_has_as_many_blocks_as_are_asked_for(name):
    model = tiny_model("MODEL.TRANSFORMER_TYPE", name, "MODEL.DEPTH", 3)
    assert len(model.backbone.vit.blocks) == 3


def test_clips_tower():
    """Without the stochastic depth of its configuration."""
    backbone = clip_model().backbone
    assert load_cfg(CLIP_CONFIG).MODEL.DROP_PATH > 0
    assert not any(isinstance(module, DropPath) for module in backbone.modules())
    assert sum(parameter.numel() for parameter in backbone.vit.parameters()) == 86_140_416
    assert (backbone.width, backbone.num_patches, tuple(backbone.grid_size)) == (512, 128, (16, 8))


@pytest.mark.parametrize(("beta", "by_mlp", "by_guides"), [(0, 1, 0), (0.25, 1, 1), (0.5, 0, 1)])
@torch.no_grad()
def test_beta_weighs_the_mlp_and_the_other_modalities(beta, by_mlp, by_guides):
    model = tiny_model("MODEL.SDTPS_BETA", beta).eval()
    encoded = encode(model)
    before = model.select_patches(encoded)["TI"].mask
    others = {name: torch.randn_like(feature) for name, feature in encoded.global_feats.items()}
    with_guides = model.select_patches(encoded._replace(global_feats=others))["TI"].mask
    for parameter in model.sdtps.tir_sparse.score_predictor.parameters():
        parameter.normal_()
    assert torch.equal(with_guides, before) == (not by_guides)
    assert torch.equal(model.select_patches(encoded)["TI"].mask, before) == (not by_mlp)


@pytest.mark.parametrize(("value", "expected"), [(True, {*MODALITIES}), (False, {"NI"})])
@torch.no_grad()
def test_whose_choice_follows_the_global_feature_of_a_missing_modality(value, expected):
    model = tiny_model("MODEL.SDTPS_GUIDE_MISSING", value).eval()
    encoded = encode(model)
    missing = {"NI": torch.ones(len(encoded.tokens["NI"]), 1, dtype=torch.bool)}
    other = {**encoded.global_feats, "NI": torch.randn_like(encoded.global_feats["NI"])}
    before, after = (
        model.select_patches(encoded._replace(missing=missing, global_feats=global_feats))
        for global_feats in (encoded.global_feats, other)
    )
    assert expected == {
        name for name in MODALITIES if not torch.equal(before[name].mask, after[name].mask)
    }
