"""The losses of SEPS against the numbers of the original and against loops."""

import pytest
import torch
from golden_cases import load_case, relative_error
from numeric import assert_close, generator, with_gradient

from seps import ContrastiveLoss, RatioLoss
from tests.reference import seps as reference

VIOLATION = pytest.mark.parametrize("max_violation", [False, True], ids=["sum", "max"])
IDS = pytest.mark.parametrize(
    "img_ids", [None, [0, 1, 1, 2, 0, 3], [0, 1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7]], ids=str
)


BATCH = 6
SUMS = (2, 2 * BATCH**2, 100, 3)
"""Lengths on the way to a loss: an excess, their sum; a mean minus its target, which is up to ten times less and so has the
error of 100 roundings; the weighted sum."""


def draw(seed, patches=10):
    """Similarities (B, B), some of whose excesses are above 0 and some below, and masks of 0 and 1 (B, B, N), soft ones too.

    Similarities are different multiples of 1/32, the diagonal's by a half more, so that no two excesses of a row are equal and
    none is 0. Masks are multiples of 1/64, whose sums are exact, with means far from the targets.
    """
    draws = generator(seed)
    places = torch.randperm(BATCH**2, generator=draws).view(BATCH, BATCH)
    scores = (places - BATCH**2 / 2 + 12.5 * torch.eye(BATCH)) / 32
    uniform = torch.rand(4, BATCH, BATCH, patches, generator=draws)
    hard = [(uniform[place] < share).float() for place, share in enumerate((0.2, 0.8))]
    soft = [(64 * uniform[place] ** power).round() / 64 for place, power in ((2, 3), (3, 1 / 3))]
    return scores, hard, soft


def assert_equal(actual, expected):
    """(value, gradient) of both, the gradient of zeros exactly; similarities are up to 1."""
    assert actual[0].shape == ()
    assert_close(actual[0], expected[0], *SUMS, scale=max(1.0, float(expected[0])))
    assert_close(actual[1], expected[1], *SUMS)


@VIOLATION
@pytest.mark.parametrize("has_ids", [True, False], ids=["ids", "no ids"])
def test_golden_contrastive(has_ids, max_violation):
    case = load_case("seps_losses")
    arrays, name = case.arrays, f"align_{'max' if max_violation else 'sum'}"
    loss = ContrastiveLoss(case.settings["margin"], max_violation)
    value, gradient = with_gradient(
        lambda scores: loss(scores, arrays["image_ids"] if has_ids else None), arrays["scores"]
    )
    assert relative_error(value, arrays[name if has_ids else f"{name}_no_ids"]) < 1e-5
    if has_ids:
        assert relative_error(gradient, arrays[f"grad_{name}"]) < 1e-5


def test_golden_ratio():
    """A tensor is the sum of the masks, as the open version returns it."""
    case = load_case("seps_losses")
    sparse, dense = case.arrays["mask_sparse"], case.arrays["mask_dense"]
    arguments = [case.settings[name] for name in ("target_ratio", "lambda_sparse", "lambda_dense")]
    for name, mask in (
        ("pair", (sparse, dense)),
        ("single", (sparse,)),
        ("tensor", sparse + dense),
    ):
        for loss in (RatioLoss(*arguments), lambda masks: reference.ratio(masks, *arguments)):
            assert relative_error(loss(mask), case.arrays[f"ratio_{name}"]) < 1e-5, name


@pytest.mark.parametrize("margin", [0.0, 0.2, 1.5])
@VIOLATION
@IDS
def test_the_contrastive_loss_and_its_gradient_are_those_of_loops(img_ids, max_violation, margin):
    scores = draw(1)[0]
    expected = with_gradient(
        lambda leaf: reference.contrastive(leaf, img_ids, margin, max_violation), scores.double()
    )
    loss, ids = ContrastiveLoss(margin, max_violation), img_ids and torch.tensor(img_ids)
    assert_equal(with_gradient(lambda leaf: loss(leaf, ids), scores), expected)


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("kind", ["tensor", "single", "pair"])
@pytest.mark.parametrize("weights", [(), (0.4, 1.5, 0.7)], ids=str)
def test_the_ratio_loss_and_its_gradient_are_those_of_loops(weights, kind, soft):
    both = torch.stack(draw(4)[2 if soft else 1])

    def pack_masks(leaf):
        return {"tensor": leaf.sum(0), "single": (leaf[0],), "pair": tuple(leaf)}[kind]

    assert_equal(
        with_gradient(lambda leaf: RatioLoss(*weights)(pack_masks(leaf)), both),
        with_gradient(lambda leaf: reference.ratio(pack_masks(leaf), *weights), both.double()),
    )
