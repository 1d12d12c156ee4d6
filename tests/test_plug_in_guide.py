"""docs/plug_in.md, applied block by block to a class with DeMo's forward (reference/demo_host)."""
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from plug_in_cases import FULL_CLASSES, FULL_WIDTH, OPTIONS, SETTINGS, try_by_hand, try_patched
from plug_in_guide import GUIDE, HOST, change, read_guide
from test_plug_in import assert_identical
from tiny import CONFIG, ROOT

from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.sdtps import MultiModalSDTPS

pytestmark = pytest.mark.slow  # a checkout of its own that is changed by hand


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    return try_by_hand(tmp_path_factory.mktemp("guide"))


@pytest.fixture(scope="module")
def results(tried):
    return tried["results"]


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


def test_the_example_is_our_configuration(results):
    on = results["example"]
    patterns = results["direct 1, on"]["patterns"]
    assert all(torch.equal(feature, patterns[pattern]) for pattern, feature in on["patterns"].items())
    example = [part for key, value in yaml.safe_load(read_guide()[1])["MODEL"].items() for part in (f"MODEL.{key}", str(value))]
    folder = ROOT / "configs" / "RGBNT201"
    assert load_cfg(folder / "DeMo.yml", example).MODEL == load_cfg(folder / "DeMo_SDTPS.yml").MODEL


def test_the_changed_loop_evaluates_all_patterns(tmp_path):
    """Also with HDM and ATM off, where DeMo evaluates the third alone."""
    checkout = shutil.copytree(HOST, tmp_path / "checkout", ignore=shutil.ignore_patterns("__pycache__"))
    change(checkout)
    done = subprocess.run([sys.executable, "train_net.py", "INPUT.SIZE_TRAIN", "[64, 32]", "SOLVER.MAX_EPOCHS", "1",
                           "MODEL.USE_SDTPS", "True"], cwd=checkout, capture_output=True, text=True, check=True)
    assert re.findall(r"pattern (\d) width", done.stdout) == ["1", "2", "3"]


def test_the_patched_checkout_computes_the_same_to_the_last_bit(results, tmp_path):
    """Features, logits and gradients; every setting and option; batches of 2, 3 and 4."""
    patched = try_patched(tmp_path)["results"]
    assert len(patched) == 3 * len(SETTINGS) + len(OPTIONS)
    for case, result in patched.items():
        for part in ("outputs", "gradients", "weights", "patterns", "trained", "small_patterns"):
            tensors, others = (list(tensors_of(way[part])) for way in (result, results[case]))
            assert tensors
            assert_identical(tensors, others)


def tensors_of(nested):
    """The leaves of nested containers."""
    if isinstance(nested, dict | list | tuple):
        for part in nested.values() if isinstance(nested, dict) else nested:
            yield from tensors_of(part)
    else:
        yield nested
