"""Losses that are no longer finite end a run and are never saved (training/monitor.py)."""

import math
from unittest import mock

import pytest
import torch
from commands import ONE_LINE, ROOT
from interrupted import EVERY_STEP, cli_args_for
from seps_tiny import cli_args_for as seps_cli_args_for

from demo_sdtps.commands import train as train_net
from demo_sdtps.config import UserError
from demo_sdtps.training.monitor import LAG, LossMonitor
from demo_sdtps.training.reid import ReIDLoss
from seps import commands as seps
from seps.training import SEPSTask

pytestmark = pytest.mark.usefixtures("shallow")

COMMANDS = {
    "train_net": (train_net.main, (ReIDLoss, "forward"), cli_args_for, "tiny_root"),
    "seps train": (seps.train, (SEPSTask, "loss"), seps_cli_args_for, "shapes_root"),
}


def times(value):
    return lambda loss, model: loss * value


def without_a_gradient(loss, model):
    """The same loss, whose gradient is no number."""
    return loss + (0 * next(model.parameters()).sum()).abs().sqrt()


LOSS, WEIGHTS = (
    "The loss became {} in epoch 1, step 2 (",
    "The weights after step 2 of epoch 1 are not finite",
)
CASES = {
    "train": ("train_net", times(math.nan), LOSS.format("nan")),
    "seps train": ("seps train", times(math.inf), LOSS.format("inf")),
    "a gradient": ("train_net", without_a_gradient, WEIGHTS),
}


@pytest.mark.parametrize(("name", "change", "told"), CASES.values(), ids=CASES)
def test_what_is_not_finite_ends_the_run_and_is_not_saved(
    request, command, tmp_path, monkeypatch, name, change, told
):
    """Step 2 of the first epoch; the step before was saved, and stays as it was."""
    main, method, words, root = COMMANDS[name]
    monkeypatch.chdir(ROOT)
    original, calls = getattr(*method), []

    def scaled_loss(self, batch):
        loss, count, sums = original(self, batch)
        calls.append(batch)
        return (change(loss, self.network) if len(calls) == 2 else loss), count, sums

    with mock.patch.object(*method, scaled_loss):
        code, _, stderr = command(
            main, *words(request.getfixturevalue(root), "OUTPUT_DIR", tmp_path / "run", *EVERY_STEP)
        )
    message = stderr.strip().splitlines()[-1]
    assert code == 2 and message.startswith(f"{ONE_LINE}{told}")
    last = torch.load(tmp_path / "run" / "last.pth", weights_only=True)
    assert (last["epoch"], last["step"]) == (0, 1) and all(
        tensor.isfinite().all() for tensor in last["model"].values()
    )


def test_a_loss_is_read_a_few_steps_later_and_before_saving():
    monitor = LossMonitor()
    for step in range(1, 8):
        monitor.add(1, step, torch.tensor(float(step)))
    monitor.add(2, 1, torch.tensor(math.nan))
    for step in range(2, LAG + 1):
        monitor.add(2, step, torch.tensor(1.0))
    with pytest.raises(
        UserError,
        match=r"epoch 2, step 1 \(the finite losses before it: 3, 4, 5, 6, 7\); lower SOLVER",
    ):
        monitor.add(2, LAG + 1, torch.tensor(1.0))
    monitor = LossMonitor()
    monitor.add(2, 1, torch.tensor(-math.inf))
    with pytest.raises(UserError, match=r"epoch 2, step 1 .*before it: none"):
        monitor.flush()
