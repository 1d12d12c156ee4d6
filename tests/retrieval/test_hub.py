"""MODEL.PRETRAIN_PATH_T hub, the default of the real configurations, as a run meets it: with a cache, and without a network."""

import os
import shlex
import subprocess
import sys

import huggingface_hub
import numpy as np
import pytest
import torch
from commands import CONFIG, ONE_LINE, ROOT, cli_args_for
from weight_files import hub_cache

import demo_sdtps
from demo_sdtps.commands import evaluate
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg

HUB = shlex.split(
    "MODEL.PATCH_SIZE 0 MODEL.STRIDE_SIZE [16,16] INPUT.SIZE_TRAIN [64,64] INPUT.SIZE_TEST [64,64] "
    "MODEL.PRETRAIN_PATH_T hub"
)
FETCHED = """
import time
from demo_sdtps.config.cli import run
from demo_sdtps.modeling.checkpoints.pretrained import read_source
time.sleep = lambda seconds: None
run(lambda: read_source("test_vit", "hub"))
"""
REAL = ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml"


def catch_refusal(command, tmp_path, main, *words):
    """The one sentence of a command that leaves nothing behind."""
    before = sorted(tmp_path.rglob("*"))
    code, stdout, stderr = command(main, *words)
    assert code == 2 and not stdout, stderr
    assert stderr.startswith(ONE_LINE) and stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    return stderr


def test_without_a_network_nothing_is_written(command, tiny_root, tmp_path):
    words = cli_args_for(tiny_root, *HUB, "OUTPUT_DIR", tmp_path / "run")
    message = catch_refusal(command, tmp_path, train_net.main, *words)
    phrases = ("timm could not download test_vit", "the path of a file", "'none' for random ones")
    assert all(phrase in message for phrase in phrases)


@pytest.mark.slow
def test_a_download_that_fails_is_one_sentence(tmp_path):
    """Without the lines of the client, which tries several times, here without its pauses."""
    done = subprocess.run(
        [sys.executable, "-c", FETCHED],
        cwd=ROOT,
        env={
            **os.environ,
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(ONE_LINE) and done.stderr.count("\n") == 1
    assert "RGBNT201/DeMo_SDTPS_tiny trains without any download." in done.stderr


def test_missing_data_are_reported_before_weights_are_fetched(command, tmp_path):
    words = ("--config_file", REAL, "DATASETS.ROOT_DIR", tmp_path, "OUTPUT_DIR", tmp_path / "run")
    message = catch_refusal(command, tmp_path, train_net.main, *words)
    assert "The data set RGBNT201 is not at" in message


def test_what_needs_no_pretrained_weights_does_not_ask_for_them(command):
    code, stdout, _ = command(evaluate.flops, "--config_file", CONFIG, *HUB)
    assert code == 0 and "test_vit" in stdout


@pytest.mark.slow
def test_weights_are_fetched_by_the_start_of_a_run_alone(command, tiny_root, tmp_path, monkeypatch):
    """Its checkpoint has them for evaluation, features and resuming."""
    weights = hub_cache(tmp_path / "cache", "test_vit")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    words = cli_args_for(tiny_root, *HUB, "OUTPUT_DIR", tmp_path / "run", "MODEL.FROZEN", "True")
    assert command(train_net.main, *words, "SOLVER.MAX_EPOCHS", "1")[0] == 0
    actual = torch.load(tmp_path / "run" / "last.pth")["model"]["backbone.vit.norm.weight"]
    assert torch.equal(actual, weights["norm.weight"])

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    code, _, stderr = command(train_net.main, *words, "RESUME", "yes")
    assert code == 0 and "epoch 2" in stderr, stderr
    assert "the weights are those of" in (tmp_path / "run" / "log.txt").read_text()
    weight = tmp_path / "run" / "last.pth"
    assert load_cfg(tmp_path / "run" / "config.yml").MODEL.PRETRAIN_PATH_T == "hub"
    assert command(test_net.main, "--weight", weight)[0] == 0
    reid = demo_sdtps.load(weight, "MODEL.DEVICE", "cpu")
    assert len(reid.features(rgb=np.zeros((40, 20, 3), np.uint8))) == 1
