"""SEPS and its slow reference against the numbers of the original; test_seps_losses.py has the losses'."""

import inspect

import pytest
import torch
from golden_cases import load_case, relative_error

from seps import CrossSparseAggrNet, SEPSLoss
from tests.reference import seps as reference

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


def make_inputs(case, dtype=torch.float32):
    """Image tokens, captions, lengths and, where the case has them, long captions and their lengths; those tokens have
    gradients."""
    arrays = [case.arrays[name] for name in INPUTS if name in case.arrays]
    return [
        tensor.to(dtype).detach().clone().requires_grad_() if tensor.is_floating_point() else tensor
        for tensor in arrays
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


@pytest.mark.parametrize("name", CASES)
def test_the_reference_agrees(name):
    """Which is the evidence that what the network is compared with on other inputs is right."""
    case = load_case(f"seps_{name}")
    inputs, settings = make_inputs(case, torch.float64), case.settings
    weights = {key: weight.double() for key, weight in case.weights.items()}
    actual = reference.similarities(
        weights,
        *inputs,
        paper=settings["use_paper_version"],
        dual=settings["use_dual_aggr"],
        **{key: settings[key] for key in ("sparse_ratio", "aggr_ratio", "beta", "top_k")},
    )
    assert_golden(case, inputs, *actual)


@pytest.mark.parametrize("name", ["open", "paper"])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_whole_losses(name, kind):
    case = load_case(f"seps_{name}")
    actual = SEPSLoss(max_violation=kind == "max")(
        *build(case)(*make_inputs(case)), img_ids=case.arrays["image_ids"]
    )
    assert relative_error(torch.stack(actual), case.arrays[f"loss_{kind}"]) < 1e-5


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
