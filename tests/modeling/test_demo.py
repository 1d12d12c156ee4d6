"""The model: its outputs, PIFE, what the fusion is given, where gradients go; keys of the configuration; fewer modalities."""

import shlex
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from golden_cases import relative_error
from numeric import assert_close, generator, random_sum
from return_patterns import B, C, expected_features, expected_patterns
from timm.layers import DropPath
from tiny import (
    CLASSES,
    CLIP_CONFIG,
    ENCODER,
    MODEL,
    PIFE,
    assert_logits,
    clear,
    clip_model,
    measure_amplification,
    pairs,
    random_images,
    tiny_cfg,
    tiny_model,
)

from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.evaluation.protocol import extract_patterns
from demo_sdtps.modeling.modalities import SUBSETS, modality_subsets

FUSION = {
    "none": {},
    "HDM": {"MODEL.HDM": True},
    "ATM": {"MODEL.HDM": True, "MODEL.ATM": True, "MODEL.HEAD": 4},
}
BOTH = ("MODEL.USE_SDTPS", True, "MODEL.HDM", True, "MODEL.ATM", True, "MODEL.HEAD", 4)
SWITCHES = [
    {"MODEL.DIRECT": direct, "MODEL.USE_SDTPS": sdtps, "MODEL.GLOBAL_LOCAL": pife} | FUSION[fusion]
    for direct, sdtps, pife, fusion in product((0, 1), (False, True), (False, True), FUSION)
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            switches,
            id="-".join(map(str, switches.values())),
            # heads and PIFE do not meet: one of them with each of the others is enough
            marks=[pytest.mark.slow] * (switches["MODEL.DIRECT"] != switches["MODEL.GLOBAL_LOCAL"]),
        )
        for switches in SWITCHES
    ],
)
def switches_and_model(request):
    """(switches, a model with them): every combination; HDM without dropout, whose masks nothing here could follow."""
    switches = request.param
    model = randomise(
        tiny_model(
            *(word for item in switches.items() for word in item), "MODEL.SDTPS_LOSS_WEIGHT", "0.7"
        )
    )
    if model.hdm:
        model.hdm.dropout = 0.0
    return switches, model


def head_width(head):
    return C * {"sdtps": 3, "moe": 7, "original": 3}.get(head, 1)


def randomise(model):
    """The same model with norms, biases and running statistics that are no longer at their start."""
    draws = generator(99)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("bottleneck.bias"):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draws))
    return model


def clear_images(model, seed, batch=4):
    """Random images, of which no patch is chosen by roundings, and cameras."""
    return clear(lambda attempt: (model, *random_images(seed + 100 * attempt, batch)))[1:]


@torch.no_grad()
def test_training_pairs(switches_and_model):
    switches, model = switches_and_model
    model.train()
    images, cameras = clear_images(model, 1, B)
    expected = expected_features(model, images, cameras)
    heads = ["sdtps"] * switches["MODEL.USE_SDTPS"] + ["moe"] * ("MODEL.HDM" in switches)
    heads += ["original"] if switches["MODEL.DIRECT"] else list(MODALITIES)
    with measure_amplification(model.atmoe or torch.nn.Identity()) as amplification:
        output = model(images, cameras)
    assert list(output.logits) == list(output.features) == heads and output.auxiliary is None
    for name, target in zip(heads, expected, strict=True):
        scores, feature = output.logits[name], output.features[name]
        assert scores.shape == (B, CLASSES)
        assert feature.shape == (B, head_width(name))
        assert_close(
            feature,
            target,
            *MODEL,
            scale=float(target.abs().max()) * max([1, *amplification * (name == "moe")]),
        )
        assert_logits(scores, model.heads[name], feature)
    assert list(model.heads) == heads
    assert model.head_weights == {name: 0.7 if name == "sdtps" else 1.0 for name in heads}


@torch.no_grad()
def test_patterns(switches_and_model):
    _, model = switches_and_model
    model.eval()
    images, cameras = clear_images(model, 2)
    expected = expected_patterns(model, images, cameras)
    patterns = extract_patterns(model, images, cameras)[0]
    assert patterns.keys() == expected.keys()
    for pattern, target in expected.items():
        assert patterns[pattern].shape == target.shape
        assert_close(patterns[pattern], target, *MODEL)
    assert torch.equal(model(images, cameras), patterns[3])
    for pattern in (1, 2):
        actual = model(images, cameras, return_pattern=pattern)
        assert (
            torch.equal(actual, patterns[pattern])
            and actual.untyped_storage().nbytes() == actual.nbytes
        )


@pytest.mark.parametrize("direct", [0, 1])
@torch.no_grad()
def test_features_after_the_neck(direct):
    """The BatchNorm of each feature's head, with its running statistics."""
    model = randomise(tiny_model(*BOTH, "MODEL.DIRECT", direct))
    images, cameras = random_images(11)
    model.train()(images, cameras)
    before = extract_patterns(model.eval(), images, cameras)[0]
    (actual,) = extract_patterns(model, images, cameras, [frozenset()], neck="after")
    assert torch.equal(model(images, cameras, neck="after"), actual[3])
    features = model.forward_head(model.forward_features(images, cameras))
    for name, feature in features.items():
        norm = model.heads[name].bottleneck
        assert norm.num_batches_tracked == 1 and norm.bias.eq(0).all()
        features[name] = (
            (feature.double() - norm.running_mean)
            / (norm.running_var.double() + norm.eps).sqrt()
            * norm.weight
        )
    original = torch.cat(
        [features["original"]] if direct else [features[modality] for modality in MODALITIES], dim=1
    )
    expected = {
        1: original,
        2: torch.cat([features["sdtps"], features["moe"]], dim=1),
        3: torch.cat([original, features["sdtps"], features["moe"]], dim=1),
    }
    for pattern, target in expected.items():
        assert_close(actual[pattern], target, *6 * (1,))
        assert relative_error(actual[pattern], before[pattern]) > 0.05


def without_gradient(model, seed=8):
    """Parameters that a backward through every training output leaves without a gradient, or with zeros."""
    images, cameras = random_images(seed)
    outputs = pairs(model.train()(images, cameras))
    model.zero_grad()
    random_sum(seed, outputs).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or parameter.grad.eq(0).all()
    }


def frozen_names(model):
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


# A softmax over the selected tokens does not feel a bias that they share: its gradient is zero but for rounding.
UNFELT = {f"sdtps.{name}_aggr.weight.3.bias" for name in ("rgb", "nir", "tir")}


def test_a_backward_reaches_every_parameter(switches_and_model):
    _, model = switches_and_model
    assert frozen_names(model) == {f"heads.{name}.bottleneck.bias" for name in model.heads}
    assert without_gradient(model) - UNFELT == frozen_names(model)


def test_a_frozen_backbone():
    """MODEL.FROZEN: the transformer keeps its weights; the camera embedding and all that follows learn."""
    model = randomise(tiny_model(*BOTH, "MODEL.FROZEN", True))
    transformer = {f"backbone.vit.{name}" for name, _ in model.backbone.vit.named_parameters()}
    assert frozen_names(model) - transformer == {
        f"heads.{name}.bottleneck.bias" for name in model.heads
    }
    assert transformer < frozen_names(model)
    assert "backbone.camera_embedding" not in frozen_names(model)
    assert without_gradient(model) - UNFELT == frozen_names(model)


@pytest.mark.parametrize("feeds", [True, False])
@torch.no_grad()
def test_hdm_reads_what_sdtps_makes_or_all_patches(feeds):
    model = tiny_model("MODEL.HDM", True, "MODEL.SDTPS_FEEDS_HDM", feeds).eval()
    images, cameras = random_images(10)
    encoded = model.forward_features(dict(reversed(images.items())), cameras)
    assert (
        [*encoded.tokens] == [*encoded.global_feats] == [*MODALITIES]
    )  # in whatever order they come
    selected = {name: each.tokens for name, each in model.select_patches(encoded).items()}
    features = model.forward_head(encoded)
    read = selected if feeds else encoded.tokens
    assert torch.equal(features["moe"], model.hdm(read, encoded.global_feats).flatten(1))
    means = [tokens.mean(dim=1) for tokens in selected.values()]
    assert torch.equal(features["sdtps"], torch.cat(means, dim=1))


@pytest.mark.parametrize(
    "opts, near",
    [(BOTH, (1,)), ((*BOTH, "MODEL.USE_SDTPS", False), (1, 2, 3))],
    ids=["SDTPS", "DeMo"],
)
@torch.no_grad()
def test_autocast_leaves_features_in_float32_and_near(opts, near):
    """Where SDTPS chooses patches, a rounding may choose others: only the original feature is near."""
    model = tiny_model(*opts).eval()
    images, cameras = random_images(9)
    expected = extract_patterns(model, images, cameras)[0]
    with torch.autocast("cpu", torch.bfloat16):
        actual = extract_patterns(model, images, cameras)[0]
        heads = model.forward_head(model.forward_features(images, cameras))
    assert {feature.dtype for feature in heads.values()} == {torch.float32}
    for pattern, feature in actual.items():
        assert feature.dtype is torch.float32
        assert not torch.equal(feature, expected[pattern])
        assert pattern not in near or F.cosine_similarity(feature, expected[pattern]).amin() > 0.99


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        ("MODEL.SDTPS_SPARSE_RATIO 0.1 MODEL.SDTPS_AGGR_RATIO 0.1", r"MODEL\.SDTPS_SPARSE_RATIO"),
        ("INPUT.SIZE_TRAIN [7,64] INPUT.SIZE_TEST [7,64]", r"INPUT\.SIZE_TRAIN"),
    ],
)
def test_settings_that_fit_no_model_are_refused(opts, message):
    with pytest.raises(UserError, match=message):
        tiny_model(*opts.split())


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


@pytest.mark.parametrize("modalities", [("RGB", "TI"), ("NI",)], ids="+".join)
@torch.no_grad()
def test_a_model_of_fewer_modalities_has_the_features_of_these(modalities):
    """With the weights of the whole model: each modality's own columns, and HDM's of the subsets that have no other."""
    options = ("MODEL.HDM", "True", "MODEL.USE_SDTPS", "False")
    whole, subset_model = (
        tiny_model(*options, "MODEL.MODALITIES", list(names)).eval().double()
        for names in (MODALITIES, modalities)
    )
    names = [*modality_subsets(modalities)]
    rows = [list(SUBSETS).index(name) for name in names]
    weights = whole.state_dict()
    subset_model.load_state_dict(
        {
            name: weights[name][rows] if name.startswith("hdm.") else weights[name]
            for name in subset_model.state_dict()
            if not name.startswith("heads.")
        },
        strict=False,
    )
    images, cameras = random_images(2)
    images = {name: image.double() for name, image in images.items()}
    expected, actual = (
        extract_patterns(whole, images, cameras)[0],
        extract_patterns(subset_model, {name: images[name] for name in modalities}, cameras)[0],
    )
    columns = torch.cat(
        [expected[1].chunk(3, dim=1)[MODALITIES.index(name)] for name in modalities], dim=1
    )
    enhanced = torch.cat([expected[2].chunk(7, dim=1)[row] for row in rows], dim=1)
    assert_close(actual[1], columns, *ENCODER, *PIFE)
    assert_close(actual[2], enhanced, *MODEL)


@pytest.mark.parametrize(
    "options",
    [
        ("MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "4"),
        ("MODEL.USE_SDTPS", "True"),
        pytest.param(("MODEL.DIRECT", "0"), marks=pytest.mark.slow),
        shlex.split("MODEL.SLIM_BLOCKS [0,2] MODEL.SLIM_KEEP [0.5,0.5] MODEL.SLIM_SCORE saliency"),
        pytest.param(
            shlex.split(
                "MODEL.SLIM_BLOCKS [1] MODEL.SLIM_KEEP [0.5] MODEL.SLIM_SCORE learned:Learned"
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda opts: opts[-1],
)
def test_rgb_alone_costs_one_modality_and_every_weight_of_it_learns(options):
    one, three = (
        tiny_model("MODEL.MODALITIES", names, "INPUT.JOINT_AUGMENTATION", "True", *options)
        for names in ("[RGB]", "[RGB, NI, TI]")
    )
    macs = [count_macs(tiny_cfg(), model)[""] for model in (one, three)]
    assert 2.8 * macs[0] < macs[1]
    images, cameras = random_images(3)
    output = one.train()({"RGB": images["RGB"]}, cameras)
    losses = [logits.square().sum() for logits in output.logits.values()]
    (sum(losses) + (0 if output.auxiliary is None else output.auxiliary.sum())).backward()
    idle = [name for name, parameter in one.named_parameters() if parameter.grad is None]
    assert [name for name in idle if not name.endswith("bottleneck.bias")] == []
