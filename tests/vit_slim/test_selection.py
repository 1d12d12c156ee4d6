"""How many patches a stage keeps."""

import pytest

from vit_slim.stage import remaining_patches


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
