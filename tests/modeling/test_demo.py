"""The model: its outputs in training and evaluation, PIFE, what the fusion is given, and where gradients go."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from golden_cases import relative_error
from numeric import assert_close, generator
from return_patterns import B, C, expected_features, expected_patterns
from tiny import (
    CLASSES,
    MODEL,
    assert_logits,
    clear,
    measure_amplification,
    pairs,
    random_images,
    tiny_model,
)

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.evaluation.extraction import extract_patterns

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


def head_names(switches):
    return (
        ["sdtps"] * switches["MODEL.USE_SDTPS"]
        + ["moe"] * ("MODEL.HDM" in switches)
        + (["original"] if switches["MODEL.DIRECT"] else list(MODALITIES))
    )


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
    heads = head_names(switches)
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
    draws = generator(seed)
    outputs = pairs(model.train()(images, cameras))
    model.zero_grad()
    sum(
        (output * torch.randn(output.shape, generator=draws)).sum() for output in outputs
    ).backward()
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
        ("MODEL.ATM True MODEL.HEAD 4", r"MODEL\.ATM is True and MODEL\.HDM False"),
        ("INPUT.SIZE_TRAIN [7,64] INPUT.SIZE_TEST [7,64]", r"INPUT\.SIZE_TRAIN"),
    ],
)
def test_settings_that_fit_no_model_are_refused(opts, message):
    with pytest.raises(UserError, match=message):
        tiny_model(*opts.split())
