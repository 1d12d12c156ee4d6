"""docs/plug_in.md, applied block by block to a class with DeMo's forward (reference/demo_host)."""
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from golden_cases import relative_error
from plug_in_guide import GUIDE, HOST, change, read_guide
from tiny import CAMERAS, CLASSES, CONFIG, ROOT, tiny_cfg

from demo_sdtps import test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.engine.checkpoint import load_weights, read_checkpoint
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.sdtps import MultiModalSDTPS
from demo_sdtps.modeling.weights import to_demo
from demo_sdtps.tools import convert_checkpoint

SIZE = ["INPUT.SIZE_TRAIN", [128, 64]]
SETTINGS = {
    "direct 1": [],
    "direct 0": ["MODEL.DIRECT", 0],
    "direct 1, HDM": ["MODEL.HDM", True],
    "direct 0, HDM": ["MODEL.DIRECT", 0, "MODEL.HDM", True],
    "without PIFE": ["MODEL.GLOBAL_LOCAL", False],
    "overlapping patches": ["MODEL.STRIDE_SIZE", [12, 14]],
}
ON = ["MODEL.USE_SDTPS", True]
WIDTH, BATCH, FULL_WIDTH, FULL_CLASSES = 64, 4, 512, 171
EACH_SETTING = pytest.mark.parametrize("setting", SETTINGS)


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """What the changed checkout gives, by case; it runs on its own, without this project on the path."""
    folder = tmp_path_factory.mktemp("plug_in")
    checkout = shutil.copytree(HOST, folder / "checkout", ignore=shutil.ignore_patterns("__pycache__"))
    example = change(checkout)
    cases = {f"{setting}, {name}": {"module": module, "opts": [*SIZE, *opts, *more]}
             for setting, opts in SETTINGS.items()
             for name, module, more in (("untouched", "untouched", []), ("off", "make_model", []), ("on", "make_model", ON))}
    cases |= {f"full size, {name}": {"module": module, "opts": ["MODEL.TRANSFORMER_TYPE", "one_block", *opts],
                                     "num_classes": FULL_CLASSES, "only_cost": True} for name, module, opts in (
        ("untouched", "untouched", []), ("off", "make_model", []), ("on", "make_model", ON),
        ("with HDM", "make_model", [*ON, "MODEL.HDM", True]))}
    cases |= {name: {"opts": [*SIZE, *ON, *more], **settings} for name, more, settings in (
        ("Gumbel", ["MODEL.SDTPS_USE_GUMBEL", True], {}),
        ("warm Gumbel", ["MODEL.SDTPS_USE_GUMBEL", True, "MODEL.SDTPS_GUMBEL_TAU", 5.0], {}),
        ("Gumbel selection", ["MODEL.SDTPS_USE_GUMBEL", True, "MODEL.SDTPS_GUMBEL_SELECT", True], {}),
        ("ratios", ["MODEL.SDTPS_SPARSE_RATIO", 0.75, "MODEL.SDTPS_AGGR_RATIO", 0.5, "MODEL.SDTPS_BETA", 0.1], {}),
        ("bfloat16", ["MODEL.HDM", True], {"precision": "bfloat16"}),
        ("float16", ["MODEL.HDM", True], {"precision": "float16"}),
        ("bfloat16 with Gumbel", ["MODEL.SDTPS_USE_GUMBEL", True], {"precision": "bfloat16"}),
        ("without 7", [], {"module": "without_7"}),
        ("5 after fusion", ["MODEL.HDM", True], {"module": "5_after_fusion"}))}
    cases["example"] = {"opts": [*SIZE, "MODEL.HDM", True], "yaml": str(folder / "example.yml")}
    (folder / "example.yml").write_text(example)
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "run_cases.py", folder / "cases.json", folder / "out.pt"], cwd=checkout,
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "out.pt", weights_only=True)


@pytest.fixture(scope="module")
def results(tried):
    return tried["results"]


def on_our_side(opts):
    """This project's configuration and model for the changed checkout's weights."""
    cfg = tiny_cfg("MODEL.PATCH_SIZE", 16, "MODEL.STRIDE_SIZE", [16, 16], "INPUT.SIZE_TRAIN", SIZE[1], "INPUT.SIZE_TEST",
                   SIZE[1], *opts)
    return cfg, make_model(cfg, CLASSES, CAMERAS).eval()


def test_the_changed_checkout_stands_alone(tried):
    environment = sys.prefix + os.sep
    ours = [file for file in tried["files"] if file.startswith(f"{ROOT}{os.sep}") and not file.startswith(environment)]
    assert not ours
    assert "modeling.sdtps" in tried["modules"]
    assert not {"timm", "torchvision", "datasets", "engine"} & set(tried["modules"])


def test_the_guide_adds_our_keys_with_our_defaults(tried):
    defaults = load_cfg(CONFIG.with_name("Baseline.yml")).MODEL
    added = {name for name in tried["defaults"] if "SDTPS" in name}
    assert added == {name for name in defaults if "SDTPS" in name} - {"SDTPS_LOSS_WEIGHT", "SDTPS_GUIDE_MISSING"}
    assert {name: tried["defaults"][name] for name in added} == {name: defaults[name] for name in added}


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
        assert (one is None and other is None) or torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def assert_near(outputs, others):
    """Slimmed tokens and masks of this process and of the checkout's, which may have another number of threads."""
    for one, other in zip(outputs, others, strict=True):
        assert relative_error(one, other) < 1e-6


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
    assert {name.partition(".")[0] for name in new} == {"sdtps", "bottleneck_sdtps", "classifier_sdtps"}
    assert on["bottleneck_sdtps.weight"].eq(1).all()
    assert on["bottleneck_sdtps.bias"].eq(0).all()
    assert "bottleneck_sdtps.bias" in results[f"{setting}, on"]["frozen"]
    assert float(on["classifier_sdtps.weight"].std()) == pytest.approx(0.001, rel=0.1)


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
    assert relative_error(enhanced[:, :3 * WIDTH], slimmed) < 1e-6
    assert enhanced.shape[1] == (3 + 7 * ("HDM" in setting)) * WIDTH
    assert torch.equal(both, torch.cat([original, enhanced], dim=-1))
    if "HDM" in setting:
        assert not torch.equal(enhanced[:, 3 * WIDTH:], off["patterns"][2])


def part_of(weights, prefix):
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting != "overlapping patches"])
@pytest.mark.parametrize("is_on", [False, True])
def test_the_same_features_as_our_model(results, setting, is_on, tmp_path):
    """A checkpoint of the changed checkout, read as test_net.py reads it; and names are those that we would write."""
    result = results[f"{setting}, {'on' if is_on else 'off'}"]
    cfg, model = on_our_side([*SETTINGS[setting], "MODEL.USE_SDTPS", is_on])
    theirs = to_demo(model.state_dict())
    assert {name: tensor.shape for name, tensor in theirs.items()} == {
        name: tensor.shape for name, tensor in result["weights"].items()}

    torch.save(result["weights"], tmp_path / "host.pth")
    load_weights(cfg, model, read_checkpoint(tmp_path / "host.pth"))
    with torch.no_grad():
        patterns = model.patterns(result["images"], torch.arange(BATCH) % CAMERAS)
    for pattern, expected in result["patterns"].items():
        assert relative_error(patterns[pattern], expected) < 1e-5, pattern


@pytest.fixture
def checkpoint(results, tmp_path):
    """A state dict that the changed checkout saves."""
    torch.save(results["direct 1, on"]["weights"], tmp_path / "DeMo.pth")
    return tmp_path / "DeMo.pth"


def test_our_evaluation_reads_its_checkpoint(checkpoint, command, tiny_root):
    cfg, _ = on_our_side(ON)
    file = checkpoint.with_name("cfg.yml")
    file.write_text(cfg.dump())
    code, output, _ = command(test_net.main, "--config_file", file, "DATASETS.ROOT_DIR", tiny_root,
                              "DATALOADER.NUM_WORKERS", 0, "TEST.WEIGHT", checkpoint)
    assert code == 0
    assert all(f"{pattern} {name}" in output for pattern, name in ((1, "original"), (2, "enhanced"), (3, "both")))


def test_its_checkpoint_is_converted_and_back(checkpoint, command):
    ours, back = checkpoint.with_name("ours.pth"), checkpoint.with_name("back.pth")
    assert command(convert_checkpoint.main, checkpoint, ours, "--to", "ours")[0] == 0
    assert command(convert_checkpoint.main, ours, back, "--to", "demo")[0] == 0
    before, after = (torch.load(file, weights_only=True) for file in (checkpoint, back))
    assert before.keys() == after.keys()
    assert_identical(before.values(), (after[name] for name in before))


def test_the_cost_is_that_of_the_guides_table(results):
    """The figures of the guide's first table."""
    off, on = results["full size, off"], results["full size, on"]
    assert off == results["full size, untouched"]
    full = MultiModalSDTPS()
    module = sum(parameter.numel() for parameter in full.parameters())
    head = 3 * FULL_WIDTH * (1 + FULL_CLASSES)
    assert on["parameters"] - off["parameters"] == module + head
    added = on["flops"][0] - off["flops"][0]
    text = GUIDE.read_text(encoding="utf-8")
    assert f"| +{module + head:,}: {module:,} of SDTPS, {head:,} of its head |" in text
    assert f"| +{added:.2f} G |" in text
    aggregated = full.rgb_aggr.weight[-1].out_features
    assert f"| {full.num_patches} → {full.keep} kept → {aggregated} aggregated + 1 extra |" in text


def test_every_operator_is_in_the_table(results):
    assert all(results[f"full size, {name}"]["flops"][1] == {} for name in ("untouched", "off", "on", "with HDM"))


def test_the_example_is_our_configuration(results):
    on = results["example"]
    assert_identical(on["patterns"].values(), results["direct 1, on"]["patterns"].values())
    example = [part for key, value in yaml.safe_load(read_guide()[1])["MODEL"].items() for part in (f"MODEL.{key}", str(value))]
    folder = ROOT / "configs" / "RGBNT201"
    assert load_cfg(folder / "DeMo.yml", example).MODEL == load_cfg(folder / "DeMo_SDTPS.yml").MODEL


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
    for one, other, third in zip(*(map(result["gradients"].get, names) for result in (plain, gumbel, warm)), strict=True):
        assert not torch.equal(one, other)
        assert not torch.equal(other, third)
        assert max(other.norm(), third.norm()) < 10 * one.norm()


def test_gumbel_selection_changes_training_alone(results):
    """Other patches in training, the best as before in evaluation."""
    (_, plain, *rest), (_, selected, *same) = (results[case]["outputs"] for case in ("direct 1, on", "Gumbel selection"))
    assert plain.shape == selected.shape and not torch.equal(plain, selected)
    assert_identical(rest, same)
    assert_identical(*(results[case]["patterns"].values() for case in ("direct 1, on", "Gumbel selection")))


@pytest.mark.parametrize("case", ["bfloat16", "float16", "bfloat16 with Gumbel"])
def test_mixed_precision(results, case):
    result, precision = results[case], getattr(torch, case.split()[0])
    assert all(torch.as_tensor(output).isfinite().all() for output in result["outputs"])
    assert all(gradient is None or gradient.isfinite().all() for gradient in result["gradients"].values())
    assert result["outputs"][0].dtype == precision
    expected = results["Gumbel" if "Gumbel" in case else "direct 1, HDM, on"]["outputs"]
    # Where two patches have almost the same score, rounding may keep the other one.
    assert relative_error(result["outputs"][1].float(), expected[1].detach()) < 0.2

    *tokens, rgb, ni, ti = (tensor.to(precision) for tensor in result["inner"]["inputs"])
    with torch.autocast("cpu", precision):
        slimmed = MultiModalSDTPS(WIDTH, tokens[0].shape[1])(*tokens, rgb, ni, ti)[:3]
    assert all(tensor.dtype == precision and tensor.isfinite().all() for tensor in slimmed)


def test_the_class_token_among_the_patches(results):
    assert results["direct 1, on"]["error"] == "The input has [33, 33, 33] patches, but this SDTPS was made for 32."
    assert "`The input has [129, 129, 129] patches, but this SDTPS was made for 128.`" in GUIDE.read_text(encoding="utf-8")


def test_what_mistakes_look_like(results):
    """The guide's list: without step 7 patterns stay the original; a step 5 after the fusion leaves its feature alone."""
    assert_identical(results["without 7"]["patterns"].values(), results["direct 1, off"]["patterns"].values())
    wrong, off = (results[case]["outputs"] for case in ("5 after fusion", "direct 1, HDM, off"))
    assert_identical(wrong[2:], off)
