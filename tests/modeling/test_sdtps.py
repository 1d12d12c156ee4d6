"""SDTPS against a slow version of itself, what guides the choice, and its errors; test_gumbel.py has the noise."""

import ast
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from numeric import assert_close
from sdtps_cases import SHAPES, assert_like_reference, build, draw

from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.sdtps import MultiModalSDTPS, cosine_guidance, guides_of


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


@pytest.mark.parametrize("index", range(3))
def test_weights_of_the_guides(index):
    """A modality's own global counts, and twice as much as another, whether it is missing or not; the sum is always 4."""
    global_feats = draw(32, 2, 1, 5)[1]
    first, second = others = [other for other in range(3) if other != index]
    expected = {
        (): (1, 1, 2),
        (first,): (0, 4 / 3, 8 / 3),
        (second,): (4 / 3, 0, 8 / 3),
        (first, second): (0, 0, 4),
    }
    for missing in product((False, True), repeat=3):
        guides, weights = guides_of(index, global_feats, missing)
        assert torch.equal(
            guides, torch.stack([global_feats[place] for place in (first, second, index)])
        )
        assert weights == pytest.approx(
            expected[tuple(other for other in others if missing[other])], rel=1e-12
        )
        assert sum(weights) == pytest.approx(4, rel=1e-12)
        if not (missing[first] or missing[second]):
            assert weights == (1, 1, 2), (
                "complete triplets compute what they always did, to the last bit"
            )


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


def test_nothing_dropped_leaves_an_extra_token_of_zeros():
    module = build(7, 10, 20, 1.0, 0.4, 0.25)
    tokens, global_feats = draw(8, 2, 10, 20)
    for slimmed in module(*tokens, *global_feats)[:3]:
        assert slimmed.shape == (2, 5, 20)
        assert slimmed[:, -1].eq(0).all()
        assert slimmed[:, :-1].abs().amin(dim=(0, 1)).gt(0).all()


def test_state_dict_names():
    width, patches, hidden, out_tokens = 20, 16, 4, 3
    expected = {}
    for name in ("rgb", "nir", "tir"):
        expected |= {
            f"{name}_sparse.score_predictor.0.weight": (5, width),
            f"{name}_sparse.score_predictor.0.bias": (5,),
            f"{name}_sparse.score_predictor.2.weight": (1, 5),
            f"{name}_sparse.score_predictor.2.bias": (1,),
            f"{name}_aggr.weight.0.weight": (width,),
            f"{name}_aggr.weight.0.bias": (width,),
            f"{name}_aggr.weight.1.weight": (hidden, width),
            f"{name}_aggr.weight.1.bias": (hidden,),
            f"{name}_aggr.weight.3.weight": (out_tokens, hidden),
            f"{name}_aggr.weight.3.bias": (out_tokens,),
            f"{name}_aggr.scale": (1, 1, 1),
        }
    module = MultiModalSDTPS(width, patches, sparse_ratio=0.5, aggr_ratio=0.4)
    assert {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()} == expected


def test_guidance_has_no_gradient_and_spans_0_to_1():
    tokens, global_feats = draw(9, 2, 10, 20)
    guidance = cosine_guidance(tokens[0], torch.stack(global_feats))
    assert not guidance.requires_grad
    assert guidance.shape == (3, 2, 10)
    assert guidance.amin(dim=-1).eq(0).all()
    assert_close(guidance.amax(dim=-1), torch.ones(3, 2), 3)


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
