"""How many patches are kept, how well a ranking of them finds a foreground, and the rankings that SDTPS makes."""

from itertools import permutations

import pytest
import torch
from numeric import assert_close, generator
from tiny import random_images, tiny_model

from demo_sdtps.config import MODALITIES
from demo_sdtps.evaluation.extraction import CASES, encode_cases
from demo_sdtps.evaluation.selection import SDTPS_NAME, average_precision, choices, random_order
from tests.reference import selection as reference
from vit_slim.stage import remaining_patches


@pytest.mark.parametrize("levels", [2, 5, 10**6])
def test_average_precision_with_and_without_ties(levels):
    draws = generator(levels)
    scores = torch.randint(levels, (40, 17), generator=draws).float() / levels
    relevant = torch.rand(40, 17, generator=draws) < torch.linspace(0, 1, 40)[:, None]
    actual = average_precision(scores, relevant)
    expected = [
        reference.average_precision(*row)
        for row in zip(scores.tolist(), relevant.tolist(), strict=True)
    ]
    assert None in expected and actual.dtype == torch.double
    assert actual.isnan().tolist() == [value is None for value in expected]
    assert actual[~actual.isnan()].tolist() == pytest.approx(
        [value for value in expected if value is not None], abs=1e-12
    )
    shuffled = torch.randperm(17, generator=draws)
    assert_close(
        average_precision(scores[:, shuffled], relevant[:, shuffled]),
        actual,
        17,
        17,
        dtype=torch.float64,
    )


@pytest.mark.parametrize(
    "relevant", [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1], [1]]
)
def test_the_ap_of_a_random_order_is_the_mean_over_all_orders(relevant):
    orders = list(permutations(range(len(relevant))))
    expected = sum(reference.average_precision(order, relevant) for order in orders) / len(orders)
    rows = torch.tensor([relevant, [0] * len(relevant)], dtype=torch.bool)
    assert random_order(rows) == pytest.approx(expected) and random_order(
        rows[:1]
    ) == pytest.approx(expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("guide_missing", [True, False])
@torch.no_grad()
def test_the_score_is_the_one_that_chose(case, guide_missing):
    model = tiny_model("MODEL.SDTPS_GUIDE_MISSING", guide_missing).eval()
    missing = CASES[case]
    (encoded,) = encode_cases(model, *random_images(1), [missing])
    selections = model.select_patches(encoded.context)
    scores = {
        modality: choice.scores
        for modality, choice in choices(model, encoded, missing)[SDTPS_NAME].items()
    }
    present = [modality for modality in MODALITIES if modality not in missing]
    assert list(scores) == present
    for modality, actual in scores.items():
        assert list(actual) == ["score", "MLP", *present]
        for score, mask in zip(actual["score"], selections[modality].mask.bool(), strict=True):
            assert score[mask].min() >= score[~mask].max()


@pytest.mark.parametrize(
    ("count", "shares", "left"),
    [
        (10, [0.5, 0.5], (5, 3)),
        (128, [0.7, 0.7, 0.7], (90, 63, 45)),
        (7, [1.0, 0.3], (7, 3)),
        (100, [0.07], (7,)),
        (3, [], ()),
    ],
)
def test_counts_are_rounded_up(count, shares, left):
    """A share that is whole but for the rounding of its product stays: 100 · 0.07 is 7."""
    assert remaining_patches(count, shares) == left
