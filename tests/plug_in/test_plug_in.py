"""SDTPS in a miniature of DeMo's checkout (reference/demo_host) by demo_sdtps.patch."""

import pytest
import torch
from choices import margins
from numeric import assert_close, tolerance
from plug_in_cases import ALL_PATCHES, BATCH, SETTINGS, SIZE, WIDTH, try_patched
from plug_in_host import PATH, SDTPS_PATH
from tiny import CAMERAS, CLASSES, tiny_cfg

from demo_sdtps.evaluation.missing import extract_patterns
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.checkpoints.names import to_demo
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.modeling.sdtps import MultiModalSDTPS

ROUNDINGS = 100 * [1]
"""On the way to a feature in mixed precision, after each operation of six blocks and the rest; its sums are in float32."""
EACH_SETTING = pytest.mark.parametrize("setting", SETTINGS)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the patched checkout computes, by case; run once."""
    return try_patched(tmp_path_factory.mktemp("plug_in"))


def on_our_side(opts):
    """This project's configuration and model for the changed checkout's weights."""
    cfg = tiny_cfg(
        "MODEL.PATCH_SIZE",
        16,
        "MODEL.HEAD",
        4,
        "MODEL.STRIDE_SIZE",
        [16, 16],
        "INPUT.SIZE_TRAIN",
        SIZE[1],
        "INPUT.SIZE_TEST",
        SIZE[1],
        *opts,
    )
    return cfg, make_model(cfg, CLASSES, CAMERAS).eval()


@EACH_SETTING
def test_off_changes_nothing(results, setting):
    untouched, off = results[f"{setting}, untouched"], results[f"{setting}, off"]
    assert off["config"]["USE_SDTPS"] is False
    assert untouched["loss"] == off["loss"]
    for part in ("initial", "gradients", "weights", "patterns"):
        assert list(untouched[part]) == list(off[part])
        assert_identical(untouched[part].values(), off[part].values())
    assert_identical(untouched["outputs"], off["outputs"])


def assert_identical(tensors, others):
    for one, other in zip(tensors, others, strict=True):
        assert (one is None and other is None) or torch.equal(
            torch.as_tensor(one), torch.as_tensor(other)
        )


def assert_near(outputs, others):
    """Slimmed tokens and masks of this process and of the checkout's, which may have another number of threads."""
    for one, other in zip(outputs, others, strict=True):
        assert_close(one, other, *SDTPS_PATH, *SDTPS_PATH)


@EACH_SETTING
def test_training_returns_another_pair_and_reaches_every_new_parameter(results, setting):
    off, on = results[f"{setting}, off"], results[f"{setting}, on"]
    scores, feature, *others = on["outputs"]
    assert scores.shape == (BATCH, CLASSES)
    assert feature.shape == (BATCH, 3 * WIDTH)
    # What was returned before follows, with the MoE's pair first where there is one: it comes from other tokens now.
    unchanged = slice(2 if "HDM" in setting else 0, None)
    assert len(others) == len(off["outputs"])
    assert_identical(others[unchanged], off["outputs"][unchanged])
    if "HDM" in setting:
        assert [part.shape for part in others[:2]] == [part.shape for part in off["outputs"][:2]]
        assert not torch.equal(others[1], off["outputs"][1])
        assert others[-1] == 0

    new = {name: gradient for name, gradient in on["gradients"].items() if "sdtps" in name}
    assert len(new) == 3 * 11 + 3
    assert new.pop("bottleneck_sdtps.bias") is None
    for name, gradient in new.items():
        assert gradient.isfinite().all(), name
        # A bias that all selected tokens share cancels in the softmax over them.
        assert name.endswith("aggr.weight.3.bias") or gradient.norm() > 1e-7, name


@EACH_SETTING
def test_the_other_weights_start_the_same(results, setting):
    off, on = (results[f"{setting}, {name}"]["initial"] for name in ("off", "on"))
    assert all(torch.equal(tensor, on[name]) for name, tensor in off.items())
    new = {name for name in on if name not in off}
    assert {name.partition(".")[0] for name in new} == {
        "sdtps",
        "bottleneck_sdtps",
        "classifier_sdtps",
    }
    assert on["bottleneck_sdtps.weight"].eq(1).all()
    assert on["bottleneck_sdtps.bias"].eq(0).all()
    assert "bottleneck_sdtps.bias" in results[f"{setting}, on"]["frozen"]
    weight = on["classifier_sdtps.weight"]
    assert float(weight.std()) == pytest.approx(
        0.001, rel=6 / (2 * weight.numel()) ** 0.5
    )  # six standard errors


@EACH_SETTING
def test_patterns_hold_the_features_of_our_module(results, setting):
    """1 original, 2 enhanced, 3 both; the numbers of SDTPS are those of this project's module."""
    off, on = results[f"{setting}, off"], results[f"{setting}, on"]
    patches = 10 * 4 if setting == "overlapping patches" else 8 * 4
    module = MultiModalSDTPS(WIDTH, patches)
    module.load_state_dict(part_of(on["weights"], "sdtps."))
    with torch.no_grad():
        outputs = module.eval()(*on["inner"]["inputs"])
    assert outputs[0].shape == (BATCH, int(patches * 0.4 * 0.5) + 1, WIDTH)
    assert_near(outputs, on["inner"]["outputs"])

    original, enhanced, both = (on["patterns"][pattern] for pattern in (1, 2, 3))
    assert torch.equal(original, off["patterns"][1])
    slimmed = torch.cat([tokens.mean(dim=1) for tokens in outputs[:3]], dim=-1)
    assert_close(
        enhanced[:, : 3 * WIDTH], slimmed, *SDTPS_PATH, *SDTPS_PATH, 14
    )  # means of up to 7 tokens, by both
    assert enhanced.shape[1] == (3 + 7 * ("HDM" in setting)) * WIDTH
    assert torch.equal(both, torch.cat([original, enhanced], dim=-1))
    if "HDM" in setting:
        assert not torch.equal(enhanced[:, 3 * WIDTH :], off["patterns"][2])


def part_of(weights, prefix):
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }


SAME = {
    "HDM on all patches": [*ALL_PATCHES, "MODEL.USE_SDTPS", True],
    **{
        f"{setting}, {name}": [*opts, "MODEL.USE_SDTPS", name == "on"]
        for setting, opts in SETTINGS.items()
        for name in ("off", "on")
        if setting != "overlapping patches"
    },
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_features_as_our_model(results, case, tmp_path):
    """A checkpoint of the changed checkout, read as test_net.py reads it; and names are those that we would write."""
    result = results[case]
    cfg, model = on_our_side(SAME[case])
    theirs = to_demo(model.state_dict())
    assert {name: tensor.shape for name, tensor in theirs.items()} == {
        name: tensor.shape for name, tensor in result["weights"].items()
    }

    torch.save(result["weights"], tmp_path / "host.pth")
    load_weights(model, read_checkpoint(tmp_path / "host.pth"))
    with torch.no_grad(), margins() as found:
        cases = [missing_modalities(cfg.TEST.MISS)]
        (patterns,) = extract_patterns(
            model, result["images"], torch.arange(BATCH) % CAMERAS, cases
        )
    # All keep the same patches: the miniature draws by its weights' names, whatever TEST_SEED is, and these draws are clear.
    assert min(found, default=1) > tolerance(*PATH, *PATH)
    for pattern, expected in result["patterns"].items():
        for feature in (
            patterns[pattern],
            *(small[pattern] for small in result["small_patterns"].values()),
        ):
            assert_close(feature, expected[: len(feature)], *PATH, *PATH)


def test_the_keys_are_used(results):
    """Ratios 0.75 and 0.5 of 32 patches, β 0.1."""
    inner = results["ratios"]["inner"]
    module = MultiModalSDTPS(WIDTH, 32, 0.75, 0.5, beta=0.1)
    module.load_state_dict(part_of(results["ratios"]["weights"], "sdtps."))
    assert inner["outputs"][0].shape[1] == 12 + 1
    assert inner["outputs"][3].sum(dim=1).eq(24).all()
    with torch.no_grad():
        assert_near(module(*inner["inputs"]), inner["outputs"])


def test_gumbel_changes_gradients_alone(results):
    """Forward nothing changes; the gradient does, with the temperature too, but keeps its size."""
    plain, gumbel, warm = (results[case] for case in ("direct 1, on", "Gumbel", "warm Gumbel"))
    assert_identical(plain["outputs"], gumbel["outputs"])
    assert_identical(plain["outputs"], warm["outputs"])
    names = [name for name in plain["gradients"] if "score_predictor" in name]
    found = [[result["gradients"][name] for name in names] for result in (plain, gumbel, warm)]
    for one, other, third in zip(*found, strict=True):
        assert not torch.equal(one, other)
        assert not torch.equal(other, third)
    one, *others = (
        torch.cat([gradient.flatten() for gradient in each]).norm() for each in found
    )  # a single one may cancel
    assert max(others) < 10 * one


def test_gumbel_selection_changes_training_alone(results):
    """Other patches in training, the best as before in evaluation."""
    (_, plain, *rest), (_, selected, *same) = (
        results[case]["outputs"] for case in ("direct 1, on", "Gumbel selection")
    )
    assert plain.shape == selected.shape and not torch.equal(plain, selected)
    assert_identical(rest, same)
    assert_identical(
        *(results[case]["patterns"].values() for case in ("direct 1, on", "Gumbel selection"))
    )


@pytest.mark.parametrize("case", ["bfloat16", "float16", "bfloat16 with Gumbel"])
def test_mixed_precision(results, case):
    result, precision = results[case], getattr(torch, case.split()[0])
    assert all(torch.as_tensor(output).isfinite().all() for output in result["outputs"])
    assert all(
        gradient is None or gradient.isfinite().all() for gradient in result["gradients"].values()
    )
    assert result["outputs"][0].dtype == precision
    whole = results["Gumbel" if "Gumbel" in case else "direct 1, HDM, on"]
    *chosen, original = zip(
        *(list(run["outputs"])[1 : 2 * (len(run["outputs"]) // 2) : 2] for run in (result, whole)),
        strict=True,
    )
    assert_close(*original, *ROUNDINGS, dtype=precision)
    for (
        found,
        exact,
    ) in chosen:  # where two patches have almost the same score, rounding may keep the other one
        assert (found.double()[:, None] - exact.double()).norm(dim=-1).argmin(
            dim=1
        ).tolist() == list(range(BATCH))

    *tokens, rgb, ni, ti = (tensor.to(precision) for tensor in result["inner"]["inputs"])
    with torch.autocast("cpu", precision):
        slimmed = MultiModalSDTPS(WIDTH, tokens[0].shape[1])(*tokens, rgb, ni, ti)[:3]
    assert all(tensor.dtype == precision and tensor.isfinite().all() for tensor in slimmed)
