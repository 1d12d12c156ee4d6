"""The library of float32 products: as the configuration says, and within our own models alone."""

import json
from contextlib import ExitStack, contextmanager

import pytest
import torch
from commands import BASELINE, SMALL, cli_args_for, load_records
from interrupted import at, terminate
from torch.nn.modules import module

import demo_sdtps
from demo_sdtps.commands import train as train_net
from demo_sdtps.runtime import device as matmul
from demo_sdtps.training.monitor import Meter

pytestmark = pytest.mark.usefixtures("shallow")

SETTING = {"onednn": "bf16", "default": "none"}


def setting():
    return torch.backends.mkldnn.matmul.fp32_precision


def test_the_users_setting_comes_back_from_contexts_that_overlap():
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    try:
        with ExitStack() as first, ExitStack() as second:
            first.enter_context(matmul.onednn())
            second.enter_context(matmul.onednn())
            first.close()
            assert setting() == "bf16"
        assert setting() == "ieee"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


@contextmanager
def seen_settings():
    """Context manager: (pass, setting) of every linear layer."""
    seen = set()

    def hook(layer, _, output):
        if isinstance(layer, torch.nn.Linear):
            seen.add(("training" if layer.training else "evaluation", setting()))
            if output.requires_grad:
                output.register_hook(lambda _: seen.add(("backward", setting())))

    with module.register_module_forward_hook(hook):
        yield seen
    assert setting() == "none"


@pytest.mark.parametrize("library", SETTING)
def test_a_run_has_the_products_of_its_configuration(
    tiny_root, files, tmp_path, command, monkeypatch, library
):
    """Those alone: nothing is measured, or kept in the home folder. Interrupted and resumed it has the same bits."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    small = (*SMALL, "SOLVER.EVAL_UNTRAINED", "False", "SOLVER.MAX_EPOCHS", "1")
    words = cli_args_for(tiny_root, config=BASELINE, small=small)
    expected = SETTING[library]
    passes = {(name, expected) for name in ("training", "backward", "evaluation")}

    def train(name, *more):
        with seen_settings() as seen:
            assert command(train_net.main, *words, "OUTPUT_DIR", tmp_path / name, *more)[0] == 0
        return seen

    key = () if library == "default" else ("SOLVER.FLOAT32_MATMUL", library)
    with at(Meter, "update", 2, terminate):
        assert train("run", *key) == {("training", expected), ("backward", expected)}
    assert train("run", "RESUME", "yes", *key) == passes
    assert train("whole", "SOLVER.FLOAT32_MATMUL", "auto" if not key else library) == passes
    assert load_records(tmp_path / "run") == load_records(tmp_path / "whole")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["machine"]["matmul"] == record["resumptions"][0]["machine"]["matmul"] == library
    reid = demo_sdtps.load(tmp_path / "whole" / "last.pth", "MODEL.DEVICE", "cpu")
    with seen_settings() as seen:
        reid.features(rgb=files["rgb"][0])
    assert seen == {("evaluation", expected)} and not (tmp_path / "home").exists()


def test_a_torch_without_a_choice_is_told(tiny_root, refusal, monkeypatch):
    monkeypatch.setattr(torch.backends, "mkldnn", object())
    words = cli_args_for(tiny_root, "OUTPUT_DIR", "run", "SOLVER.FLOAT32_MATMUL", "onednn")
    assert "which needs torch 2.9" in refusal(train_net.main, *words)
