"""The model: its outputs in training and evaluation, PIFE, missing modalities, and where gradients go."""
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from golden_cases import relative_error
from tiny import CAMERAS, CLASSES, PATCHES, WIDTH, random_images, tiny_cfg, tiny_model

from config import MODALITIES, UserError
from modeling import make_model

B, C = 4, WIDTH
KEPT_TOKENS = 6 + 1
SWITCHES = [dict(zip(("MODEL.DIRECT", "MODEL.USE_SDTPS", "MODEL.GLOBAL_LOCAL"), values, strict=True))
            for values in product((0, 1), (False, True), (False, True))]
ALL_SWITCHES = pytest.mark.parametrize("switches", SWITCHES, ids=lambda switches: "-".join(map(str, switches.values())))
MISSING = {"r": ["RGB"], "n": ["NI"], "t": ["TI"], "rn": ["RGB", "NI"], "rt": ["RGB", "TI"], "nt": ["NI", "TI"]}


def as_opts(switches):
    return [part for item in switches.items() for part in item]


def randomised(model):
    """The same model with norms, biases and running statistics that are no longer at their start."""
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("bottleneck.bias"):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def by_hand(model, images, cameras):
    """(patch tokens, globals) by modality from one trunk call for each, with PIFE as a formula."""
    patches, globals_ = {}, {}
    for modality in MODALITIES:
        patches[modality], class_token = model.trunk(images[modality], cameras)
        globals_[modality] = class_token
        if model.pife:
            norm, linear, _ = model.pife.reduce[modality]
            mixed = torch.cat([class_token, patches[modality].sum(dim=1) / PATCHES], dim=1)
            mixed = (mixed - mixed.mean(1, keepdim=True)) / (mixed.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            hidden = (mixed * norm.weight + norm.bias) @ linear.weight.T + linear.bias
            globals_[modality] = hidden * torch.sigmoid(1.702 * hidden)
    return patches, globals_


def expected_features(model, images, cameras):
    """Features in the order of the heads: SDTPS (B, 3C), then the original (B, 3C) or one (B, C) per modality."""
    patches, globals_ = by_hand(model, images, cameras)
    features = []
    if model.sdtps:
        slimmed = model.sdtps(*patches.values(), *globals_.values())[:3]
        assert all(tokens.shape == (len(cameras), KEPT_TOKENS, C) for tokens in slimmed)
        features.append(torch.cat([tokens.sum(dim=1) / KEPT_TOKENS for tokens in slimmed], dim=1))
    return features + ([torch.cat(list(globals_.values()), dim=1)] if model.one_head else list(globals_.values()))


@ALL_SWITCHES
@torch.no_grad()
def test_training_pairs(switches):
    model = randomised(tiny_model(*as_opts(switches))).train()
    images, cameras = random_images(1)
    expected = expected_features(model, images, cameras)
    heads = ["sdtps"] * switches["MODEL.USE_SDTPS"] + (["original"] if switches["MODEL.DIRECT"] else list(MODALITIES))
    outputs = model(images, cameras)
    assert isinstance(outputs, tuple)
    assert len(outputs) == 2 * len(heads)
    for scores, feature, wanted, name in zip(outputs[::2], outputs[1::2], expected, heads, strict=True):
        assert scores.shape == (B, CLASSES)
        assert feature.shape == (B, C if name in MODALITIES else 3 * C)
        assert relative_error(feature, wanted) < 1e-5, name
        # the head: BatchNorm on the batch's statistics, then a product
        head = model.heads[name]
        normed = (feature - feature.mean(0)) / (feature.var(0, unbiased=False) + 1e-5).sqrt() * head.bottleneck.weight
        assert relative_error(scores, normed @ head.classifier.weight.T) < 1e-4, name
    assert list(model.heads) == heads


@ALL_SWITCHES
@torch.no_grad()
def test_patterns(switches):
    model = randomised(tiny_model(*as_opts(switches))).eval()
    images, cameras = random_images(2)
    features = expected_features(model, images, cameras)
    enhanced = features[:1] if switches["MODEL.USE_SDTPS"] else []
    original = torch.cat(features[len(enhanced):], dim=1)
    expected = {1: original, 2: enhanced[0] if enhanced else original, 3: torch.cat([original, *enhanced], dim=1)}
    assert expected[3].shape == (B, 6 * C if enhanced else 3 * C)

    patterns = model.patterns(images, cameras)
    assert patterns.keys() == expected.keys()
    for pattern, wanted in expected.items():
        assert patterns[pattern].shape == wanted.shape
        assert relative_error(patterns[pattern], wanted) < 1e-5, pattern
        assert torch.equal(model(images, cameras, return_pattern=pattern), patterns[pattern])
    assert torch.equal(model(images, cameras), patterns[3])


@pytest.mark.parametrize("pife", [True, False])
@torch.no_grad()
def test_encode_equals_one_modality_at_a_time(pife):
    model = randomised(tiny_model("MODEL.GLOBAL_LOCAL", pife)).eval()
    images, cameras = random_images(3, batch=3)
    patches, globals_ = model.encode(images, cameras)
    expected_patches, expected_globals = by_hand(model, images, cameras)
    assert list(patches) == list(globals_) == list(MODALITIES)
    for modality in MODALITIES:
        assert patches[modality].shape == (3, PATCHES, C)
        assert relative_error(patches[modality], expected_patches[modality]) < 1e-5
        assert relative_error(globals_[modality], expected_globals[modality]) < 1e-5


@torch.no_grad()
def test_order_of_the_images_does_not_matter_but_their_names_do():
    model = randomised(tiny_model()).eval()
    images, cameras = random_images(4)
    expected = model(images, cameras)
    assert torch.equal(model({modality: images[modality] for modality in reversed(MODALITIES)}, cameras), expected)
    swapped = {**images, "NI": images["TI"], "TI": images["NI"]}
    assert not torch.allclose(model(swapped, cameras), expected)


@torch.no_grad()
def test_camera_changes_the_features():
    model = randomised(tiny_model()).eval()
    images, cameras = random_images(5)
    assert not torch.allclose(model(images, cameras), model(images, (cameras + 1) % CAMERAS))


@pytest.mark.parametrize("miss, modalities", MISSING.items())
@torch.no_grad()
def test_missing_modalities(miss, modalities):
    complete, model = tiny_model(), tiny_model("TEST.MISS", miss)
    images, cameras = random_images(6)
    zeroed = {modality: image * (modality not in modalities) for modality, image in images.items()}
    found, expected = model.eval().patterns(images, cameras), complete.eval().patterns(zeroed, cameras)
    untouched = complete.patterns(images, cameras)
    for pattern in (1, 2, 3):
        assert torch.equal(found[pattern], expected[pattern])
        assert not torch.allclose(found[pattern], untouched[pattern])
    for one, other in zip(model.train()(images, cameras), complete.train()(images, cameras), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("miss", ["None", "nothing"])
@torch.no_grad()
def test_nothing_missing(miss):
    images, cameras = random_images(7)
    assert torch.equal(tiny_model("TEST.MISS", miss).eval()(images, cameras), tiny_model().eval()(images, cameras))


def without_gradient(model, seed=8):
    """Trainable parameters that a backward through every training output leaves without a gradient, or with zeros."""
    images, cameras = random_images(seed)
    generator = torch.Generator().manual_seed(seed)
    outputs = model.train()(images, cameras)
    sum((output * torch.randn(output.shape, generator=generator)).sum() for output in outputs).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    return {name for name, parameter in model.named_parameters()
            if parameter.requires_grad and (parameter.grad is None or parameter.grad.eq(0).all())}


# A softmax over the selected tokens does not feel a bias that they share: its gradient is zero but for rounding.
UNFELT = {f"sdtps.{name}_aggr.weight.3.bias" for name in ("rgb", "nir", "tir")}
SCORERS = {f"sdtps.{name}_sparse.score_predictor.{layer}.{part}"
           for name in ("rgb", "nir", "tir") for layer in (0, 2) for part in ("weight", "bias")}


@ALL_SWITCHES
def test_a_backward_reaches_every_parameter(switches):
    assert without_gradient(randomised(tiny_model(*as_opts(switches)))) - UNFELT == set()


@pytest.mark.parametrize("opts, expected", [
    (["MODEL.SDTPS_SPARSE_RATIO", "1.0"], SCORERS),
    (["MODEL.SDTPS_SPARSE_RATIO", "1.0", "MODEL.SDTPS_USE_GUMBEL", "True"], set()),
    (["MODEL.SDTPS_USE_GUMBEL", "True"], set()),
    (["MODEL.SDTPS_BETA", "0.5"], SCORERS),
], ids=str)
def test_score_mlp_is_reached_only_where_the_score_matters(opts, expected):
    """By the extra token's weights where something is dropped, by Gumbel's mask; not where guidance alone decides."""
    assert without_gradient(randomised(tiny_model(*opts))) - UNFELT == expected


@ALL_SWITCHES
def test_necks_bias_is_frozen(switches):
    model = tiny_model(*as_opts(switches))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"heads.{name}.bottleneck.bias" for name in model.heads}
    assert all(head.bottleneck.bias.eq(0).all() for head in model.heads.values())


def test_heads_start():
    model = make_model(tiny_cfg(), 500, CAMERAS)
    for head in model.heads.values():
        assert head.classifier.bias is None
        assert float(head.classifier.weight.detach().std()) == pytest.approx(0.001, rel=0.02)
        assert head.bottleneck.weight.eq(1).all()


@ALL_SWITCHES
def test_pair_weights(switches):
    model = tiny_model(*as_opts(switches), "MODEL.SDTPS_LOSS_WEIGHT", "0.7")
    assert model.pair_weights == (0.7,) * switches["MODEL.USE_SDTPS"] + (1.0,) * (1 if switches["MODEL.DIRECT"] else 3)


@torch.no_grad()
def test_autocast_leaves_features_in_float32_and_near():
    model = tiny_model().eval()
    images, cameras = random_images(9)
    expected = model.patterns(images, cameras)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.patterns(images, cameras)
    assert all(feature.dtype is torch.float32 for feature in found.values())
    similarity = F.cosine_similarity(found[1], expected[1])
    assert similarity.amin() > 0.99
    assert not torch.equal(found[1], expected[1])


def test_sdtps_ratios_that_leave_no_token():
    with pytest.raises(UserError, match=r"MODEL\.SDTPS_SPARSE_RATIO"):
        tiny_model("MODEL.SDTPS_SPARSE_RATIO", "0.1", "MODEL.SDTPS_AGGR_RATIO", "0.1")
