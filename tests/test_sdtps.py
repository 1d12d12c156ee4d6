"""SDTPS against a slow version of itself, its straight-through gradient, and its errors."""
import ast
import sys
from pathlib import Path

import pytest
import torch
from golden_cases import relative_error
from reference import sdtps as reference

from modeling import sdtps
from modeling.sdtps import MultiModalSDTPS, cosine_guidance, straight_through_mask

# seed, batch, patches, width, sparse ratio, aggregation ratio, beta
SHAPES = [
    (1, 2, 16, 20, 0.5, 0.4, 0.25),
    (2, 3, 13, 24, 0.5, 0.4, 0.25),
    (3, 2, 9, 32, 1.0, 0.4, 0.25),
    (4, 1, 12, 20, 0.3, 0.9, 0.0),
    (5, 2, 11, 20, 0.75, 0.5, 0.5),
    (6, 2, 11, 12, 0.1, 1.0, 0.1),
]
GUMBEL_SHAPES = [(*SHAPES[0], 1.0), (*SHAPES[1], 0.5), (*SHAPES[2], 5.0), (*SHAPES[4], 2.0)]


def build(seed, patches, width, sparse_ratio, aggr_ratio, beta, use_gumbel=False, tau=1.0):
    """A module whose parameters are all random, norms, biases and scales too."""
    torch.manual_seed(seed)
    module = MultiModalSDTPS(width, patches, sparse_ratio, aggr_ratio, use_gumbel, tau, beta)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def draw(seed, batch, patches, width):
    """Tokens [(B, N, C)] with gradient and globals [(B, C)] with gradient, of three modalities."""
    generator = torch.Generator().manual_seed(seed)
    return ([torch.randn(batch, patches, width, generator=generator).requires_grad_() for _ in range(3)],
            [torch.randn(batch, width, generator=generator).requires_grad_() for _ in range(3)])


def draw_noises(seed, batch, patches):
    """The noise that a training forward draws after `torch.manual_seed(seed)`: -log of exponentials, one modality at a time."""
    torch.manual_seed(seed)
    return [-torch.empty(batch, patches).exponential_().log() for _ in range(3)]


def probed(seed, outputs):
    """A scalar that depends on every number of `outputs`, differently."""
    generator = torch.Generator().manual_seed(seed)
    return sum((output * torch.randn(output.shape, generator=generator).to(output.dtype)).sum() for output in outputs)


def assert_like_reference(seed, batch, patches, width, sparse_ratio, aggr_ratio, beta, tau=None):
    """Values and gradients of a training forward, with Gumbel noise where `tau` is given."""
    module = build(seed, patches, width, sparse_ratio, aggr_ratio, beta, tau is not None, tau or 1.0)
    tokens, globals_ = draw(seed + 100, batch, patches, width)
    noises = None if tau is None else draw_noises(seed + 200, batch, patches)
    torch.manual_seed(seed + 200)
    outputs = module(*tokens, *globals_)
    probed_outputs = outputs if tau else outputs[:3]  # without Gumbel the masks are constants
    probed(seed, probed_outputs).backward()

    exact = {name: parameter.detach().double().requires_grad_() for name, parameter in module.named_parameters()}
    exact_tokens = [tensor.detach().double().requires_grad_() for tensor in tokens]
    slimmed, masks = reference.sdtps(exact, exact_tokens, [tensor.detach().double() for tensor in globals_], sparse_ratio,
                                     aggr_ratio, beta, tau, noises and [noise.double() for noise in noises])
    probed(seed, [*slimmed, *masks][:len(probed_outputs)]).backward()

    for output, expected in zip(outputs, [*slimmed, *masks], strict=True):
        assert output.shape == expected.shape
        assert relative_error(output, expected.detach()) < 1e-5
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    found |= {f"tokens {index}": tensor.grad for index, tensor in enumerate(tokens)}
    exact |= {f"tokens {index}": tensor for index, tensor in enumerate(exact_tokens)}
    assert_gradients_equal(found, {name: tensor.grad for name, tensor in exact.items()})
    assert all(tensor.grad is None for tensor in globals_)


def assert_gradients_equal(found, expected):
    """To 1e-5 per layer, weight and bias together: a bias alone may be zero but for rounding. No gradient is zeros."""
    for layer in {name.rpartition(".")[0] or name for name in expected}:
        names = [name for name in expected if (name.rpartition(".")[0] or name) == layer]
        exact = flat(expected[name] for name in names)
        if exact.eq(0).all():
            assert flat(found[name] for name in names).eq(0).all(), layer
        else:
            assert relative_error(flat(found[name] for name in names), exact) < 1e-5, layer


def flat(tensors):
    return torch.cat([torch.zeros(1) if tensor is None else tensor.flatten() for tensor in tensors])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape):
    assert_like_reference(*shape)


@pytest.mark.parametrize("shape", GUMBEL_SHAPES, ids=str)
def test_values_and_gradients_with_gumbel(shape):
    """Masks included: the gradient that they carry is that of the soft mask under the same noise."""
    assert_like_reference(*shape)


def test_nothing_dropped_leaves_an_extra_token_of_zeros():
    module = build(7, 10, 20, 1.0, 0.4, 0.25)
    tokens, globals_ = draw(8, 2, 10, 20)
    for slimmed in module(*tokens, *globals_)[:3]:
        assert slimmed.shape == (2, 5, 20)
        assert slimmed[:, -1].eq(0).all()
        assert slimmed[:, :-1].abs().amin(dim=(0, 1)).gt(0).all()


def test_state_dict_names():
    width, patches, hidden, out_tokens = 20, 16, 4, 3
    expected = {}
    for name in ("rgb", "nir", "tir"):
        expected |= {
            f"{name}_sparse.score_predictor.0.weight": (5, width), f"{name}_sparse.score_predictor.0.bias": (5,),
            f"{name}_sparse.score_predictor.2.weight": (1, 5), f"{name}_sparse.score_predictor.2.bias": (1,),
            f"{name}_aggr.weight.0.weight": (width,), f"{name}_aggr.weight.0.bias": (width,),
            f"{name}_aggr.weight.1.weight": (hidden, width), f"{name}_aggr.weight.1.bias": (hidden,),
            f"{name}_aggr.weight.3.weight": (out_tokens, hidden), f"{name}_aggr.weight.3.bias": (out_tokens,),
            f"{name}_aggr.scale": (1, 1, 1)}
    module = MultiModalSDTPS(width, patches, sparse_ratio=0.5, aggr_ratio=0.4)
    assert {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()} == expected


def test_guidance_has_no_gradient_and_spans_0_to_1():
    tokens, globals_ = draw(9, 2, 10, 20)
    guidance = cosine_guidance(tokens[0], torch.stack(globals_))
    assert not guidance.requires_grad
    assert guidance.shape == (3, 2, 10)
    assert guidance.amin(dim=-1).eq(0).all()
    assert torch.allclose(guidance.amax(dim=-1), torch.ones(3, 2))


@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gumbel_leaves_the_forward_alone(precision, tau):
    plain, gumbel = (build(11, 16, 20, 0.5, 0.4, 0.25, use_gumbel, tau) for use_gumbel in (False, True))
    tokens, globals_ = draw(12, 3, 16, 20)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        expected, found = plain(*tokens, *globals_), gumbel(*tokens, *globals_)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)
    for mask in found[3:]:
        assert mask.requires_grad
        assert mask.sum(dim=1).eq(8).all()
        assert ((mask == 0) | (mask == 1)).all()


def test_gumbel_gradients_are_finite_in_half_precision():
    module = build(13, 16, 20, 0.5, 0.4, 0.25, use_gumbel=True)
    tokens, globals_ = draw(14, 3, 16, 20)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = module(*tokens, *globals_)
    probed(15, outputs).backward()
    assert all(tensor.grad.isfinite().all() for tensor in (*tokens, *module.parameters()))


@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
def test_mask_gradient_by_finite_differences(tau):
    generator = torch.Generator().manual_seed(16)
    score = torch.rand(7, generator=generator, dtype=torch.float64)
    probe = torch.randn(7, generator=generator, dtype=torch.float64)
    hard = (score > score.median()).double()[None]
    torch.manual_seed(17)
    noise = -torch.empty(1, 7, dtype=torch.float64).exponential_().log()

    leaf = score[None].clone().requires_grad_()
    torch.manual_seed(17)
    mask = straight_through_mask(leaf, hard, tau)
    (mask * probe).sum().backward()
    assert torch.equal(mask.detach(), hard)

    step = 1e-6
    for index in range(7):
        moved = []
        for sign in (1, -1):
            shifted = score.clone()
            shifted[index] += sign * step
            soft = torch.stack(reference.soft_decision(shifted, noise[0], tau))
            moved.append(float(soft @ probe))
        assert float(leaf.grad[0, index]) == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-5, abs=1e-8)


def score_gradients(use_gumbel, sparse_ratio, tau=1.0):
    module = build(18, 16, 20, sparse_ratio, 0.4, 0.25, use_gumbel, tau)
    tokens, globals_ = draw(19, 3, 16, 20)
    torch.manual_seed(20)
    probed(21, module(*tokens, *globals_)[:3]).backward()
    scorers = [parameter for name, parameter in module.named_parameters() if "score_predictor" in name]
    return [torch.zeros(()) if parameter.grad is None else parameter.grad for parameter in scorers], tokens


def test_only_gumbel_reaches_the_scores_where_nothing_is_dropped():
    assert all(gradient.eq(0).all() for gradient in score_gradients(use_gumbel=False, sparse_ratio=1.0)[0])
    assert all(gradient.norm() > 1e-6 for gradient in score_gradients(use_gumbel=True, sparse_ratio=1.0)[0])


def norm(tensors):
    return float(flat(tensors).norm())


@pytest.mark.parametrize("tau", [0.1, 1.0, 5.0])
def test_gumbel_gradients_keep_their_size(tau):
    (plain_scores, plain_tokens), (scores, tokens) = (score_gradients(use_gumbel, 0.5, tau) for use_gumbel in (False, True))
    assert norm(scores) < 10 * norm(plain_scores)
    assert norm([tensor.grad for tensor in tokens]) < 10 * norm([tensor.grad for tensor in plain_tokens])


def test_the_known_explosion_would_be_noticed():
    """Subtracting (1 - D)·1e10 gives the same tokens and gradients a hundred thousand times larger and more."""
    module = build(22, 12, 20, 0.5, 0.5, 0.25, use_gumbel=True)
    tokens, globals_ = draw(23, 1, 12, 20)
    noises = draw_noises(24, 1, 12)
    torch.manual_seed(24)
    slimmed = module(*tokens, *globals_)[:3]
    probed(25, slimmed).backward()

    exploding = [tensor.detach().double().requires_grad_() for tensor in tokens]
    weights = {name: parameter.detach().double() for name, parameter in module.named_parameters()}
    same, _ = reference.sdtps(weights, exploding, [tensor.detach().double() for tensor in globals_], 0.5, 0.5, 0.25,
                              1.0, [noise.double() for noise in noises], penalty=True)
    probed(25, same).backward()
    assert max(relative_error(found, expected.detach()) for found, expected in zip(slimmed, same, strict=True)) < 1e-5
    assert norm([tensor.grad for tensor in exploding]) > 1e5 * norm([tensor.grad for tensor in tokens])


def test_noise_is_drawn_in_training_and_not_in_evaluation():
    module = build(26, 16, 20, 0.5, 0.4, 0.25, use_gumbel=True)
    tokens, globals_ = draw(27, 2, 16, 20)

    def mask_gradient():
        mask = module(*tokens, *globals_)[3]
        return torch.autograd.grad((mask * torch.arange(16)).sum(), module.rgb_sparse.score_predictor[0].weight)[0]

    assert not torch.equal(mask_gradient(), mask_gradient())

    module.eval()
    torch.manual_seed(28)
    state = torch.get_rng_state()
    first, second = module(*tokens, *globals_), module(*tokens, *globals_)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not any(mask.requires_grad for mask in first[3:])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["sparse_ratio", "aggr_ratio"])
@pytest.mark.parametrize("value", [0.0, -0.5, 1.01, float("nan")])
def test_ratio_outside_its_range(name, value):
    with pytest.raises(ValueError, match=name):
        MultiModalSDTPS(20, 16, **{name: value})


def test_ratios_that_leave_no_aggregated_token():
    with pytest.raises(ValueError, match="below one token"):
        MultiModalSDTPS(20, 16, sparse_ratio=0.25, aggr_ratio=0.2)
    MultiModalSDTPS(20, 16, sparse_ratio=0.25, aggr_ratio=0.25)  # exactly one


@pytest.mark.parametrize("modality", range(3))
def test_wrong_number_of_patches(modality):
    module = MultiModalSDTPS(20, 16)
    tokens, globals_ = draw(29, 2, 16, 20)
    tokens[modality] = tokens[modality][:, :15]
    with pytest.raises(ValueError, match=r"15.*16"):
        module(*tokens, *globals_)


def test_the_file_stands_alone():
    imported = set()
    for node in ast.walk(ast.parse(Path(sdtps.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            imported.add(node.module.split(".")[0])
    assert "torch" in imported
    assert imported - {"torch"} <= sys.stdlib_module_names
