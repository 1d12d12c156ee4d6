"""SDTPS against a slow version of itself, what guides the choice, and its errors; test_gumbel.py has the noise."""

import pytest
import torch
from sdtps_cases import SHAPES, assert_like_reference, build, draw

from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.sdtps import MultiModalSDTPS


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape):
    assert_like_reference(*shape)


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_values_and_gradients_with_missing_modalities(missing):
    """Exactly the modalities that lose a guide have other scores, which the extra token shows, than with all three globals."""
    with_all, others = (
        assert_like_reference(31, 3, 13, 20, 0.5, 0.4, 0.25, missing=places)
        for places in ((), missing)
    )
    for place in range(3):
        assert torch.equal(with_all[place], others[place]) == (set(missing) <= {place})
        assert torch.equal(with_all[3 + place], others[3 + place]) or not set(missing) <= {place}


def test_of_equal_patches_the_first_are_kept():
    """Of so many that torch's own order of equal numbers is another one."""
    kept, mask = sdtps.select(torch.tensor([0.0, 1.0]).repeat_interleave(64).expand(2, -1), 80)
    assert kept.tolist() == 2 * [[*range(64, 128), *range(16)]]
    assert mask.nonzero()[:, 1].tolist() == 2 * [*range(16), *range(64, 128)]


def test_a_token_of_zeros_is_like_nothing():
    tokens, guides = torch.randn(2, 5, 8), torch.randn(3, 2, 8)
    tokens[1, 2] = guides[0, 1] = 0
    expected = torch.zeros(3, 2, 5, dtype=torch.bool)
    expected[0, 1] = expected[:, 1, 2] = True
    assert torch.equal(sdtps.cosines(tokens, guides) == 0, expected)


def test_nothing_dropped_leaves_an_extra_token_of_zeros():
    module = build(7, 10, 20, 1.0, 0.4, 0.25)
    tokens, global_feats = draw(8, 2, 10, 20)
    for slimmed in module(*tokens, *global_feats)[:3]:
        assert slimmed.shape == (2, 5, 20)
        assert slimmed[:, -1].eq(0).all()
        assert slimmed[:, :-1].abs().amin(dim=(0, 1)).gt(0).all()


@pytest.mark.parametrize("modality", range(3))
def test_wrong_number_of_patches(modality):
    module = MultiModalSDTPS(20, 16)
    tokens, global_feats = draw(29, 2, 16, 20)
    tokens[modality] = tokens[modality][:, :15]
    with pytest.raises(ValueError, match=r"15.*16"):
        module(*tokens, *global_feats)
