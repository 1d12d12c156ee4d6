"""What makes the model fast changes nothing: beside DeMo's reference formulation, in half precision, in chunks and compiled."""

import copy
import re
import shutil
from collections import defaultdict
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from numeric import assert_close, generator, shift_seed
from tiny import (
    CAMERAS,
    CLASSES,
    ENCODER,
    PATCHES,
    ROOT,
    SHALLOW,
    assert_logits,
    equal,
    exact,
    measure_amplification,
    pairs,
    random_images,
    sums_of_a_backbone,
    sums_of_the_fusion,
    tiny_model,
)
from torch import nn

import demo_sdtps.modeling.backbones as backbone_module
from benchmarks.operators import BUDGETS, DENSE, count_rows
from demo_sdtps.config import RETURN_PATTERNS, load_cfg
from demo_sdtps.evaluation.protocol import extract_patterns
from demo_sdtps.modeling.backbones import QuickGELUMlp
from demo_sdtps.modeling.checkpoints.names import from_demo, to_demo
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.modeling.precision import half_weights, inference
from demo_sdtps.runtime.device import autocast
from tests.reference import demo as reference_demo
from vit_slim import Score

SIZE, BLOCKS = (48, 32), 2
DEMO = (
    *sums_of_a_backbone(
        reference_demo.WIDTH, reference_demo.HEADS, 1 + 6, BLOCKS, reference_demo.PATCH
    ),
    reference_demo.WIDTH,
    6,
    2 * reference_demo.OUT_WIDTH,
    2 * reference_demo.OUT_WIDTH,
    *sums_of_the_fusion(reference_demo.OUT_WIDTH, 1 + 6),
)
"""Lengths of the sums from images of six patches to a feature: CLIP's backbone and projection, PIFE, HDM and ATMoE."""
CPU = torch.device("cpu")
LEAF = re.compile("(weight|bias)$")


@pytest.fixture(scope="module")
def both():
    """The reference DeMo in float64 and ours with its weights, not at their start, without dropout, with one of the blocks."""
    torch.manual_seed(shift_seed())
    reference = reference_demo.Demo(SIZE, CLASSES, CAMERAS, dropout=0.0)
    transformer = reference.BACKBONE.base.transformer
    transformer.resblocks = transformer.resblocks[:BLOCKS]
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.ndim == 1:  # norms and biases
                parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in reference.named_buffers():
            if "running" in name:
                buffer.add_(torch.rand_like(buffer))
    cfg = load_cfg(
        ROOT / "configs" / "RGBNT201" / "DeMo.yml",
        ["INPUT.SIZE_TRAIN", str(list(SIZE)), "INPUT.SIZE_TEST", str(list(SIZE))],
    )
    ours = make_model(cfg, CLASSES, CAMERAS)
    ours.backbone.vit.blocks = ours.backbone.vit.blocks[:BLOCKS]
    ours.load_state_dict(from_demo(reference.state_dict()))
    ours.hdm.dropout = 0.0
    return reference.double(), ours


def test_a_training_pass_is_that_of_the_reference_model_with_its_gradients(both):
    reference, ours = both
    images, cameras = random_images(2, batch=8, size=SIZE)
    with measure_amplification(reference.generalFusion) as amplification:
        in_double = {modality: image.double() for modality, image in images.items()}
        expected = reference.train()(in_double, cameras)
    actual = ours.train()(images, cameras)
    assert actual.auxiliary is None and list(actual.features) == list(expected.features)
    for (name, theirs), factor in zip(
        expected.features.items(), (max(amplification), 1.0), strict=True
    ):
        assert_close(
            actual.features[name], theirs, *DEMO, scale=factor * float(theirs.detach().abs().max())
        )
        assert_logits(actual.logits[name], ours.heads[name], actual.features[name])
    probes = [torch.randn_like(output) for output in pairs(actual)]
    for outputs in (actual, expected):
        sum(
            (output * probe).sum() for output, probe in zip(pairs(outputs), probes, strict=True)
        ).backward()
    gradients = {
        name: parameter.grad
        for name, parameter in reference.named_parameters()
        if parameter.requires_grad
    }
    expected = from_demo(reference.state_dict() | gradients)
    actual = {
        name: parameter.grad
        for name, parameter in ours.named_parameters()
        if parameter.requires_grad
    }
    assert actual.keys() <= expected.keys() and len(actual) > 60
    largest = defaultdict(float)  # of a layer: a bias may have no effect but for roundings
    for name in actual:
        largest[LEAF.sub("", name)] = max(
            largest[LEAF.sub("", name)], float(expected[name].abs().max())
        )
    for name, gradient in actual.items():
        assert_close(
            gradient, expected[name], *DEMO, *DEMO, 8 * 3 * 7, scale=largest[LEAF.sub("", name)]
        )
    for model in both:
        model.zero_grad()


@pytest.mark.parametrize("seed", range(3))
def test_quick_gelu_between_scaled_weights(seed):
    """Values and gradients in float64 beside fc2(h·sigmoid(1.702 h)), h = fc1."""
    torch.manual_seed(shift_seed(seed))
    fast = QuickGELUMlp(6, 24).double()
    tokens = (4 * torch.randn(2, 5, 6, dtype=torch.double)).requires_grad_()
    probe = torch.randn(2, 5, 6, dtype=torch.double)
    inputs = [tokens, *fast.parameters()]
    actual = fast(tokens)
    hidden = fast.fc1(tokens)
    expected = fast.fc2(hidden / (1 + torch.exp(-1.702 * hidden)))
    forward = 2 * (6, 8, 24)  # the products and the activation, of either
    assert_close(actual, expected, *forward, dtype=torch.double)
    for ours, theirs in zip(
        torch.autograd.grad((actual * probe).sum(), inputs),
        torch.autograd.grad((expected * probe).sum(), inputs),
        strict=True,
    ):
        # weights sum over the tokens
        assert_close(ours, theirs, *2 * forward, 10, 10, dtype=torch.double)
    with torch.no_grad():
        exported = torch.export.export(fast, (tokens,)).module()
        for run in (fast, exported):
            assert_close(run(tokens), expected, *forward, dtype=torch.double)
        fast.fold()
        assert_close(fast(tokens), expected, *forward, dtype=torch.double)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_half_precision_hardly_turns_a_feature(both, precision):
    ours = both[1]
    images, cameras = random_images(3, size=SIZE)
    before = copy.deepcopy(ours.state_dict())
    with torch.no_grad():
        exact = extract_patterns(ours.eval(), images, cameras)[0]
    with inference(ours, precision):
        assert ours.backbone.vit.blocks[-1].mlp.fc1.weight.dtype == precision
        half = extract_patterns(ours, images, cameras)[0]
    for pattern in RETURN_PATTERNS:
        assert half[pattern].dtype == torch.float32
        assert F.cosine_similarity(half[pattern], exact[pattern]).min() > 0.999
        assert not torch.equal(half[pattern], exact[pattern])
    assert equal(ours.state_dict(), before)
    with torch.no_grad():
        assert torch.equal(ours(images, cameras, 1), exact[1])


def test_inference_leaves_the_model_as_it_was_after_an_error_too():
    model = tiny_model().train()
    backbone = model.backbone
    with pytest.raises(KeyError), inference(model, torch.bfloat16):
        assert not model.training and model.backbone is not backbone and not torch.is_grad_enabled()
        raise KeyError
    assert model.training and model.backbone is backbone and torch.is_grad_enabled()
    assert all(parameter.requires_grad for parameter in backbone.vit.parameters())


@pytest.mark.parametrize("count", [1, 3, 7])
def test_chunks_are_the_batch(monkeypatch, count):
    monkeypatch.setattr(backbone_module, "CHUNK", 3)
    backbone = tiny_model().eval().backbone
    images, cameras = random_images(4, batch=count)
    whole = backbone(images["NI"], cameras)
    assert whole[0].requires_grad
    with torch.no_grad():
        parts = backbone(images["NI"], cameras)
    for *both, expected in zip(
        whole, parts, exact(backbone)(images["NI"].double(), cameras), strict=True
    ):
        for actual in both:
            assert_close(actual, expected, *ENCODER)


@pytest.mark.parametrize(("in_half", "fused"), [(False, True), (True, False)])
def test_attention_is_chosen_by_precision(in_half, fused):
    model = tiny_model()
    with autocast(CPU, torch.bfloat16 if in_half else None):
        model.train()(*random_images(5))
    assert {block.attn.fused_attn for block in model.backbone.vit.blocks} == {fused}
    with inference(model, torch.bfloat16 if in_half else None):
        model(*random_images(5))
        assert {block.attn.fused_attn for block in model.backbone.vit.blocks} == {fused}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.filterwarnings("default")  # torch's compiler warns of what it does itself
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
def test_compiled_equals_eager_in_training_and_evaluation():
    """Also once the weights have changed, of which evaluation in half precision makes a compiled copy."""
    # SDTPS chooses patches, others where a rounding is another
    opts = ("MODEL.USE_SDTPS", False, "MODEL.HDM", True, "MODEL.DEPTH", 2)
    eager, compiled = tiny_model(*opts), tiny_model(*opts)
    compiled.backbone.compile_blocks()
    assert to_demo(compiled.state_dict()).keys() == to_demo(eager.state_dict()).keys()
    images, cameras = random_images(6)
    for _ in range(2):
        for model in (eager, compiled):
            model.hdm.dropout = 0.0
        reference, exact_images = exact(eager.train(), images)
        expected, actual = (
            list(output.features.values())
            for output in (reference(exact_images, cameras), compiled.train()(images, cameras))
        )
        for theirs, ours in zip(expected, actual, strict=True):
            assert_close(ours, theirs, *SHALLOW)
        for features in (expected, actual):
            sum(feature.square().mean() for feature in features).backward()
        for theirs, ours in zip(reference.parameters(), compiled.parameters(), strict=True):
            if theirs.grad is not None:
                assert_close(
                    ours.grad, theirs.grad, *SHALLOW, *SHALLOW, len(images) * len(cameras) * PATCHES
                )
        features = []
        for model in (eager, compiled):
            model.zero_grad()
            with inference(model, torch.bfloat16):
                features.append(model(images, cameras))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.1)
        assert F.cosine_similarity(*features).min() > 0.999


def make_network():
    torch.manual_seed(0)
    blocks = nn.LayerNorm(16), QuickGELUMlp(16, 64), nn.LayerNorm(16), QuickGELUMlp(16, 32)
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4),
        nn.Flatten(2),
        nn.Linear(4, 16, bias=False),
        *blocks,
        nn.Linear(16, 1),
    )


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_values_and_gradients_are_those_of_autocast(precision):
    images = torch.randn(5, 3, 8, 8, generator=generator(1))
    runs = []
    for make_context in (lambda network: nullcontext(), half_weights):
        network = make_network()
        network[2].weight.requires_grad_(False)
        network.add_module("unused", QuickGELUMlp(16, 64))
        with torch.autocast("cpu", precision), make_context(network):
            assert [each.requires_grad for each in (network[2].weight, network[7].weight)] == [0, 1]
            output = network[:8](images)
        output.float().square().sum().backward()
        runs.append((output, [weight.grad for weight in network.parameters()]))
    (expected, gradients), (output, ours) = runs
    assert torch.equal(output, expected)
    without = [number for number, gradient in enumerate(gradients) if gradient is None]
    assert without == [number for number, gradient in enumerate(ours) if gradient is None]
    assert len(without) == 5, "a frozen layer, and one that is not used"
    for actual, gradient in zip(ours, gradients, strict=True):
        if gradient is not None:
            assert actual.dtype == torch.float32 and gradient.any()
            assert torch.equal(actual, gradient)


def test_weights_are_cast_inside_alone_and_only_for_gradients_in_half_precision():
    network = make_network()
    before = dict(network.named_parameters())

    def dtypes():
        return [layer.weight.dtype for layer in network.modules() if isinstance(layer, nn.Linear)]

    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(KeyboardInterrupt), half_weights(network):
            assert set(dtypes()) == {torch.bfloat16} and len(dtypes()) == 6
            assert {layer.weight.dtype for layer in network if isinstance(layer, nn.LayerNorm)} == {
                torch.float32
            }
            raise KeyboardInterrupt
        with torch.no_grad(), half_weights(network):
            assert set(dtypes()) == {torch.float32}
    with half_weights(network):
        assert set(dtypes()) == {torch.float32}
    after = dict(network.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)
    network(torch.zeros(1, 3, 8, 8)).sum().backward()


class Precise(Score):
    """A score of the user's, which computes in float32."""

    def __init__(self):
        super().__init__(16, (1, 4))
        self.linear = nn.Linear(16, 1)

    def score(self, tokens, context):
        with torch.autocast("cpu", enabled=False):
            return self.linear(tokens.float()).squeeze(-1)


def test_a_score_may_compute_outside_autocast():
    network = nn.Sequential(nn.Linear(16, 16), Precise())
    with torch.autocast("cpu", torch.bfloat16), half_weights(network):
        assert network[0].weight.dtype == torch.bfloat16
        network[1].score(network[0](torch.ones(2, 4, 16)), None).sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


@pytest.mark.parametrize(
    "score",
    [name if name == DENSE else pytest.param(name, marks=pytest.mark.slow) for name in BUDGETS],
)
def test_no_more_operators_than_budgeted_and_none_that_waits_for_the_device(score):
    inference, moved, step = count_rows(score)
    assert inference.met and step.met, (inference.ours, step.ours)
    assert inference.ours < step.ours
    # of the dense model 44 GB
    assert moved.ours > (20 if score == DENSE else 8)
