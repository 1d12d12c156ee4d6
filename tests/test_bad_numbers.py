"""Losses and weights that are no longer numbers: said where and by which files, and never saved (engine/monitor.py)."""
import math
import re
from unittest import mock

import pytest
import torch
from commands import ONE_LINE, contents
from interrupted import EVERY_STEP, at, cli_args_for
from seps_tiny import cli_args_for as seps_cli_args_for

from demo_sdtps import train_net, train_seps
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import train_loader
from demo_sdtps.engine.monitor import LossMonitor, check_weights, files_of_batch
from demo_sdtps.engine.reid import ReIDTrainer
from demo_sdtps.engine.trainer import Trainer
from demo_sdtps.engine.transfer import Arrival
from demo_sdtps.seps.training import SEPSTrainer


@pytest.fixture
def loader(tiny_root):
    cfg = load_cfg(None, [str(word) for word in cli_args_for(tiny_root)[2:]])
    return train_loader(cfg, read_splits(cfg, ("train",))["train"])


def spoiled(kind, number, value):
    """Inside, the loss of the step number `number` is `value`."""
    original, calls = kind.loss, []

    def loss_of(self, batch):
        loss, count, sums = original(self, batch)
        calls.append(batch)
        return (loss * value if len(calls) == number else loss), count, sums

    return mock.patch.object(kind, "loss", loss_of)


COMMANDS = {"train_net": (train_net.main, ReIDTrainer, cli_args_for, "tiny_root"),
            "train_seps": (train_seps.main, SEPSTrainer, seps_cli_args_for, "shapes_root")}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_bad_loss_is_reported_with_its_step_and_files(request, command, tmp_path, monkeypatch, name, value):
    """Step 2 of the first epoch; the steps before were saved, and stay as they were."""
    main, kind, words, root = COMMANDS[name]
    root = request.getfixturevalue(root)
    monkeypatch.chdir(train_net.__file__.rsplit("/", 1)[0])
    output = tmp_path / "run"
    with spoiled(kind, 2, value):
        code, _, stderr = command(main, *words(root, "OUTPUT_DIR", output, *EVERY_STEP))
    said = stderr.strip().splitlines()[-1]
    assert code == 2 and said.startswith(f"{ONE_LINE}The loss became {value} in epoch 1, step 2, with the files {root}")
    assert re.search(r"the last finite losses were [\d.]+; lower SOLVER\.BASE_LR, set SOLVER\.GRAD_CLIP", said)
    last = torch.load(output / "last.pth", weights_only=True)
    assert (last["epoch"], last["step"]) == (0, 1) and all(tensor.isfinite().all() for tensor in last["model"].values())
    log = (output / "log.txt").read_text().split("the batch of epoch 1, step 2:\n")[1]
    files = [line for line in log.splitlines() if line.startswith(str(root))]
    assert all(file in files for file in re.search("with the files (.*?) … ", said)[1].split(", "))
    assert f"({len(files)} in all, listed in log.txt)" in said and len(files) == 8 * (3 if name == "train_net" else 1)


def test_the_files_are_those_of_the_batch(loader):
    loader.batch_sampler.begin(3)
    items = list(loader.batch_sampler)[1]
    loader.batch_sampler.begin(3, 4)
    found = files_of_batch(loader, 3, 2)
    assert found == [path for index, _ in items for path in loader.dataset.files(index)]
    assert loader.batch_sampler.start == 4  # its own place is left alone


def test_the_last_finite_losses(loader):
    monitor = LossMonitor(loader)
    for step in range(1, 8):
        monitor.add(1, step, torch.tensor(float(step)))
    with pytest.raises(UserError, match=r"the last finite losses were 3, 4, 5, 6, 7;"):
        monitor.add(2, 1, torch.tensor(math.nan))
    with pytest.raises(UserError, match=r"epoch 2, step 1, .*no finite loss came before"):
        LossMonitor(loader).add(2, 1, torch.tensor(-math.inf))


class Late:
    """A CUDA event of a copy that has yet to come."""

    def __init__(self):
        self.waited = False

    def query(self):
        return self.waited

    def synchronize(self):
        self.waited = True


def test_a_loss_on_its_way_is_not_waited_for_but_before_saving(loader):
    monitor = LossMonitor(loader)
    events = [Late(), Late()]
    monitor.pending.extend((1, step, late(torch.tensor(math.nan), event)) for step, event in zip((4, 5), events, strict=True))
    monitor.add(1, 6, torch.tensor(1.0))
    assert len(monitor.pending) == 3 and not events[0].waited
    with pytest.raises(UserError, match="epoch 1, step 4"):  # its own step, though others have been since
        monitor.flush()
    assert events[0].waited and not events[1].waited


def late(tensor, event):
    """A copy that is on its way."""
    arrival = Arrival(tensor)
    arrival.event = event
    return arrival


def test_weights_that_a_finite_loss_has_spoiled(command, tiny_root, tmp_path, monkeypatch):
    """A gradient that is not finite: the loss shows it a step later, and what is saved before must not."""
    monkeypatch.chdir(train_net.__file__.rsplit("/", 1)[0])
    output, models = tmp_path / "run", []

    def spoil():
        with torch.no_grad():
            next(models[0].parameters()).fill_(math.nan)

    original = Trainer._train_step

    def watched(self, batch):
        models.append(self.model)
        original(self, batch)

    before = {}
    third = at(Trainer, "_save", 3, lambda: (before.update(contents(output)), spoil()))
    with mock.patch.object(Trainer, "_train_step", watched), third:
        code, _, stderr = command(train_net.main, *cli_args_for(tiny_root, "OUTPUT_DIR", output, *EVERY_STEP))
    said = stderr.strip().splitlines()[-1]
    assert code == 2 and said.startswith(f"{ONE_LINE}The weights are no longer finite in epoch 1 (1 tensors, the first ")
    assert contents(output)["last.pth"] == before["last.pth"]


def test_weights_that_are_numbers():
    model = torch.nn.BatchNorm1d(3)
    check_weights(model, 1)
    model.running_var.fill_(math.inf)
    with pytest.raises(UserError, match="the first running_var"):
        check_weights(model, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_losses_on_a_gpu(loader):
    monitor = LossMonitor(loader)
    with pytest.raises(UserError, match="epoch 1, step 3"):
        for step in range(1, 6):
            monitor.add(1, step, torch.tensor(1.0 if step < 3 else math.nan, device="cuda"))
        monitor.flush()
