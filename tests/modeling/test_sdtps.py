"""SDTPS against a slow version of itself, what guides the choice, and its errors; test_gumbel.py has the noise."""

import ast
import sys
from pathlib import Path

import pytest
import torch
from numeric import shift_seed
from sdtps_cases import SHAPES, assert_like_reference, build, draw, random_sum

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.sdtps import SDTPS, MultiModalSDTPS


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


def test_a_missing_modality_guides_itself_alone():
    """The scores, and with them the extra tokens, see a missing modality's global in its own choice and in no other."""
    module = build(33, 16, 20, 0.5, 0.4, 0.25).eval()
    tokens, global_feats = draw(34, 3, 16, 20)
    for place in range(3):
        others = [
            torch.randn(3, 20) if index == place else guide
            for index, guide in enumerate(global_feats)
        ]
        for missing in (None, place):
            mask = tuple(index == missing for index in range(3))
            one, other = (
                module(*tokens, *guides, missing=mask) for guides in (global_feats, others)
            )
            for index in range(3):
                is_guided = missing is None or index == place
                assert torch.equal(one[3 + index], other[3 + index]) or is_guided
                assert torch.equal(one[index], other[index]) != is_guided


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


@pytest.mark.parametrize("missing", [(), ("NI",)], ids=["complete", "NI missing"])
def test_the_model_s_module_is_the_one_that_can_be_copied(missing):
    """Values and gradients of a training forward with noise, to the last bit, and the same parameter names."""
    torch.manual_seed(shift_seed(4))
    ours, alone = SDTPS(24, 32, use_gumbel=True), MultiModalSDTPS(24, 32, use_gumbel=True)
    alone.load_state_dict(ours.state_dict())
    tokens, global_feats = draw(4, 5, 32, 24)
    rows = {name: torch.ones(5, 1, dtype=torch.bool) for name in missing}
    torch.manual_seed(shift_seed(5))
    selections = ours(
        *(dict(zip(MODALITIES, each, strict=True)) for each in (tokens, global_feats)), rows
    )
    torch.manual_seed(shift_seed(5))
    absent = tuple(modality in missing for modality in MODALITIES)
    expected = alone(*tokens, *global_feats, missing=absent)
    outputs = [selection.tokens for selection in selections.values()]
    outputs += [selection.mask for selection in selections.values()]
    assert all(torch.equal(one, other) for one, other in zip(outputs, expected, strict=True))
    for tensors in (outputs, expected):
        random_sum(6, tensors).backward()
    gradients = dict(alone.named_parameters())
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter.grad, gradients[name].grad), name


@pytest.mark.parametrize("modality", range(3))
def test_wrong_number_of_patches(modality):
    module = MultiModalSDTPS(20, 16)
    tokens, global_feats = draw(29, 2, 16, 20)
    tokens[modality] = tokens[modality][:, :15]
    with pytest.raises(ValueError, match=r"15.*16"):
        module(*tokens, *global_feats)


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
