"""Trainings with other losses, samplers and optimisers, in this process, and what they leave in the checkpoints."""

import shlex

import pytest
import torch
from commands import BACKBONE_WIDTH, CONFIG, cli_args_for
from numeric import shift_seed
from tiny import random_images, tiny_cfg, tiny_model

from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.datasets.loaders import Batch
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.runtime.device import set_seed
from demo_sdtps.training.reid import ReIDLoss

pytestmark = pytest.mark.usefixtures("shallow")

CENTERS = ("MODEL.METRIC_LOSS_TYPE", "triplet_center")
STILL = ("SOLVER.MAX_EPOCHS", "1", "SOLVER.BASE_LR", "1e-20")
"""An epoch that leaves the model as it starts."""
IDENTITIES = 6


@pytest.fixture
def train(command, tiny_root, tmp_path):
    """Call train_net.py with some more words, evaluating at the end: → the folder of the run and its configuration."""

    def call(*more, name="run"):
        end = ("SOLVER.EVAL_UNTRAINED", "False", "SOLVER.EVAL_PERIOD", "99")
        seed = ("SOLVER.SEED", shift_seed(1111))
        words = cli_args_for(tiny_root, *end, *seed, "OUTPUT_DIR", tmp_path / name, *more)
        code, _, stderr = command(train_net.main, *words)
        assert code == 0, stderr
        return tmp_path / name, load_cfg(CONFIG, words[2:])

    return call


def checkpoint(folder, name="last.pth"):
    return torch.load(folder / name, weights_only=True)


def centers(folder):
    """The centers of the SDTPS and of the original feature."""
    return list(checkpoint(folder)["center_losses"].values())


@pytest.mark.slow
def test_a_run_with_centers(train):
    """They move, are in last.pth alone, and are no part of the model."""
    # The centers are drawn after the model: a run that hardly moves them tells where they start.
    still, _ = train(*CENTERS, *STILL, "SOLVER.CENTER_LR", "1e-20", name="still")
    output, _ = train(*CENTERS, "SOLVER.MAX_EPOCHS", "1")
    assert list(checkpoint(output)["center_losses"]) == ["0.centers", "1.centers"]
    for start, end in zip(centers(still), centers(output), strict=True):
        assert start.shape == end.shape == (IDENTITIES, 3 * BACKBONE_WIDTH)
        assert (end - start).norm(dim=1).min() > 0  # each of them
    assert "center_losses" not in checkpoint(output, "best.pth")
    assert not [key for key in checkpoint(output)["model"] if "center" in key]


@pytest.mark.slow
def test_mixed_precision_scales_the_gradients_of_centers_and_model_back(train):
    """float16 with its scaler and two optimisers."""
    plain, half = (
        train(*CENTERS, *STILL, "SOLVER.AMP", mode, name=mode)[0] for mode in ("off", "fp16")
    )
    assert checkpoint(half)["scaler"]["scale"] > 1 and not checkpoint(plain)["scaler"]
    start = centers(train(*CENTERS, *STILL, "SOLVER.CENTER_LR", "1e-20", name="start")[0])
    for one, other, begin in zip(centers(plain), centers(half), start, strict=True):
        assert (one - begin).norm() > 1 and (one - other).norm() < 0.01 * (one - begin).norm()

    opts = shlex.split("SOLVER.MAX_EPOCHS 1 SOLVER.OPTIMIZER_NAME SGD SOLVER.AMP fp16")
    moved = checkpoint(train(*CENTERS, *opts)[0])
    # SGD's steps are as long as the gradients, which are scaled by some ten thousand on the way.
    steps = [
        (moved["model"][name] - begin).norm()
        for name, begin in checkpoint(half)["model"].items()
        if name.endswith("weight")
    ]
    assert 0 < max(steps) < 1


@pytest.mark.slow
def test_the_scaler_of_a_resumed_run_goes_on(train):
    """From a scale at which no gradient overflows, so that each of an epoch's five or six steps counts."""
    half = (*STILL, "SOLVER.AMP", "fp16")
    output, _ = train(*half)
    content = checkpoint(output)
    content["scaler"] |= {"scale": 2.0, "_growth_tracker": 100}
    torch.save(content, output / "last.pth")
    train(*half, "SOLVER.MAX_EPOCHS", "2", "RESUME", "yes")
    scaler = checkpoint(output)["scaler"]
    assert scaler["scale"] == 2 and scaler["_growth_tracker"] in (105, 106)


def test_accuracy_counts_the_samples_that_the_first_head_knows():
    """Where its logits are all 0, those of class 0."""
    model = tiny_model()
    torch.nn.init.zeros_(next(iter(model.heads.values())).classifier.weight)
    images, cameras = random_images(1)
    batch = Batch(images, torch.tensor([0, 0, 1, 0]), cameras)
    assert float(ReIDLoss(tiny_cfg(), model.train())(batch).sums["accuracy"]) == 3


def test_a_frozen_backbone_stays_as_it_is(train):
    output, cfg = train(
        "MODEL.FROZEN", "True", "SOLVER.MAX_EPOCHS", "1", "SOLVER.WEIGHT_DECAY", "0.1"
    )
    set_seed(cfg.SOLVER.SEED)
    start = make_model(cfg, IDENTITIES, 4).state_dict()
    end = checkpoint(output)["model"]
    same = {name for name, tensor in end.items() if torch.equal(tensor, start[name])}
    assert same == {
        name for name in end if name.startswith("backbone.vit.") or name.endswith("bottleneck.bias")
    }
    assert len(same) > 24 and "backbone.camera_embedding" in end.keys() - same
