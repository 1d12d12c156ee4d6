"""SEPS and its losses against the numbers of the original."""

import inspect

import pytest
import torch
from golden_cases import load_case, relative_error
from numeric import with_gradient

from seps import ContrastiveLoss, CrossSparseAggrNet, RatioLoss, SEPSLoss

CASES = ["open", "open_sparse_only", "open_gradients"]
CASES += ["paper", "paper_no_long", "paper_single", "paper_gradients"]
INPUTS = ["images", "captions", "caption_lengths", "long_captions", "long_caption_lengths"]


def build(case):
    """The case's network in training; loading is strict, for the names are the interface."""
    names = set(inspect.signature(CrossSparseAggrNet).parameters) & set(case.settings)
    assert set(case.settings) - names <= {"seed", "has_cls", "parameters"}
    network = CrossSparseAggrNet(**{name: case.settings[name] for name in names})
    network.load_state_dict(case.weights)
    return network.train()


def make_inputs(case):
    """Image tokens, captions, lengths and, where the case has them, long captions and their lengths; those tokens have
    gradients."""
    return [
        tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor
        for tensor in (case.arrays[name] for name in INPUTS if name in case.arrays)
    ]


def assert_golden(case, inputs, similarity, masks):
    """Values, masks and, where the case has them, gradients and losses."""
    arrays = case.arrays
    assert similarity.shape == arrays["similarity"].shape
    assert relative_error(similarity, arrays["similarity"]) < 1e-5
    if not case.settings["use_paper_version"]:
        assert isinstance(masks, torch.Tensor)
        assert "mask" not in arrays or torch.equal(masks.float(), arrays["mask"])
    else:
        named = [arrays[name] for name in ("mask_sparse", "mask_dense") if name in arrays]
        assert isinstance(masks, tuple)
        pairs = zip(masks, named, strict=bool(named))
        assert all(torch.equal(mask.float(), expected) for mask, expected in pairs)
    if "probe" in arrays:
        (similarity * arrays["probe"]).sum().backward()
        for name, tensor in zip(INPUTS, inputs, strict=True):
            if f"grad_{name}" in arrays:
                assert_gradient(tensor.grad, arrays[f"grad_{name}"], name)


def assert_gradient(actual, expected, name):
    """No gradient and one of zeros are the same."""
    if expected.eq(0).all():
        assert actual is None or actual.eq(0).all(), name
    else:
        assert relative_error(actual, expected) < 1e-5, name


@pytest.mark.parametrize("name", CASES)
def test_values_masks_and_gradients(name):
    case = load_case(f"seps_{name}")
    network, inputs = build(case), make_inputs(case)
    assert_golden(case, inputs, *network(*inputs))
    assert relative_error(network.eval()(*inputs), case.arrays["similarity"]) < 1e-5


@pytest.mark.parametrize("name", ["open", "paper"])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_whole_losses(name, kind):
    case = load_case(f"seps_{name}")
    actual = SEPSLoss(max_violation=kind == "max")(
        *build(case)(*make_inputs(case)), img_ids=case.arrays["image_ids"]
    )
    assert relative_error(torch.stack(actual), case.arrays[f"loss_{kind}"]) < 1e-5


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_the_contrastive_loss(kind):
    case = load_case("seps_losses")
    arrays, name = case.arrays, f"align_{kind}"
    loss = ContrastiveLoss(case.settings["margin"], max_violation=kind == "max")
    value, gradient = with_gradient(
        lambda scores: loss(scores, arrays["image_ids"]), arrays["scores"]
    )
    assert relative_error(value, arrays[name]) < 1e-5
    assert relative_error(gradient, arrays[f"grad_{name}"]) < 1e-5
    assert relative_error(loss(arrays["scores"]), arrays[f"{name}_no_ids"]) < 1e-5


def test_the_ratio_loss():
    """A tensor is the sum of the masks, as the open version returns it."""
    case = load_case("seps_losses")
    sparse, dense = case.arrays["mask_sparse"], case.arrays["mask_dense"]
    names = ("target_ratio", "lambda_sparse", "lambda_dense")
    loss = RatioLoss(*(case.settings[name] for name in names))
    masks = {"pair": (sparse, dense), "single": (sparse,), "tensor": sparse + dense}
    for name, mask in masks.items():
        assert relative_error(loss(mask), case.arrays[f"ratio_{name}"]) < 1e-5, name


@pytest.mark.parametrize(
    ("sizes", "options", "count"),
    [
        ((), {}, 57_368),
        ((), {"use_paper_version": True}, 246_392),
        ((32, 16, 0.5, 0.5), {}, 291),
        ((32, 16, 0.5, 0.5), {"use_paper_version": True}, 1_198),
        ((40, 25, 0.5, 0.4), {"use_paper_version": True, "use_dual_aggr": False}, 1_367),
    ],
    ids=str,
)
def test_number_of_parameters(sizes, options, count):
    network = CrossSparseAggrNet(*sizes, **options)
    assert sum(parameter.numel() for parameter in network.parameters()) == count
