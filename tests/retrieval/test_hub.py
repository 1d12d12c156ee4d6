"""MODEL.PRETRAIN_PATH_T hub, the default of the real configurations, as a run meets it: with a cache, and without a network."""

import shlex
import socket
import threading

import huggingface_hub
import numpy as np
import pytest
import torch
from commands import CONFIG, ROOT, cli_args_for
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
REAL = ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml"


def test_without_a_network_nothing_is_written(refusal, tiny_root, tmp_path):
    """Nor asked for where the data are missing."""
    words = cli_args_for(tiny_root, *HUB, "OUTPUT_DIR", tmp_path / "run")
    assert "timm could not download test_vit" in refusal(train_net.main, *words)
    words = ("--config_file", REAL, "DATASETS.ROOT_DIR", tmp_path, "OUTPUT_DIR", tmp_path / "run")
    assert "The data set RGBNT201 is not at" in refusal(train_net.main, *words)
    assert not [*tmp_path.iterdir()]


def test_a_hub_that_does_not_answer_is_asked_once(refusal, tiny_root, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        place, hub = f"http://127.0.0.1:{server.getsockname()[1]}", huggingface_hub.constants
        monkeypatch.setattr(hub, "ENDPOINT", place)
        monkeypatch.setattr(hub, "HUGGINGFACE_CO_URL_TEMPLATE", place + "/{repo_id}")
        monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
        asked = []
        answer = lambda: [asked.append(server.accept()[0].close()) for _ in range(9)]  # noqa: E731
        threading.Thread(target=answer, daemon=True).start()
        words = cli_args_for(tiny_root, *HUB, "OUTPUT_DIR", tmp_path / "run")
        assert "timm could not download test_vit" in refusal(train_net.main, *words)
    assert len(asked) == 1 and hub.HF_HUB_OFFLINE is False


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
