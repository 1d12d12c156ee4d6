"""Trainings in this process that are interrupted at a given place, and whether two runs are the same."""

import shlex
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
from commands import SMALL
from torch.utils._pytree import keystr, tree_flatten_with_path

from demo_sdtps.commands import train as train_net
from demo_sdtps.commands.cli import run
from demo_sdtps.training import reid
from demo_sdtps.training.run import Run

RANDOM = shlex.split(
    "MODEL.SDTPS_USE_GUMBEL True MODEL.SDTPS_GUMBEL_SELECT True MODEL.DROP_PATH 0.2 "
    "MODEL.METRIC_LOSS_TYPE triplet_center SOLVER.GRAD_CLIP 5"
)
"""Everything random that the model has, and everything that has a state."""


def cli_args_for(root, *more):
    """A command's words: three epochs of five or six steps, each evaluated."""
    config = ("--config_file", "configs/Synthetic/DeMo_SDTPS.yml", "DATASETS.ROOT_DIR", root)
    epochs = shlex.split("SOLVER.MAX_EPOCHS 3 SOLVER.EVAL_UNTRAINED False")
    return [*config, *SMALL, *epochs, *RANDOM, *more]


def call(words, main=train_net.main):
    """Call a command: → its exit code."""
    with mock.patch.object(sys, "argv", ["command", *map(str, words)]):
        try:
            run(main)
        except SystemExit as ended:
            return ended.code
    return 0


def prepared(cfg):
    """What `train` gives the loop, which is not run, and nothing is written: → its model, loss, notes, about and evaluate."""
    with mock.patch.object(reid, "fit") as fit, mock.patch.object(Run, "begin") as begin:
        model = reid.train(cfg, overwrite=True).model.train()
    _, _, loss, _, evaluate = fit.call_args.args
    return SimpleNamespace(model=model, loss=loss, evaluate=evaluate, **begin.call_args.kwargs)


@contextmanager
def at(owner, name, number, act):
    """Context manager: the call number `number`, from 1, of a method or function does `act` first."""
    original, calls = getattr(owner, name), []

    def watch(*arguments, **named):
        calls.append(name)
        if len(calls) == number:
            act()
        return original(*arguments, **named)

    with mock.patch.object(owner, name, watch):
        yield
    assert len(calls) >= number, f"{name} was called {len(calls)} times"


def kill():
    """Leaves the files as they are, as SIGKILL would."""
    raise KeyboardInterrupt


def assert_same(reference, output):
    """Weights, optimisers, random states, metrics: all to the last bit."""
    assert (reference / "metrics.json").read_bytes() == (output / "metrics.json").read_bytes()
    for name in ("last.pth", "best.pth"):
        one, other = (
            dict(leaves(torch.load(folder / name, weights_only=True)))
            for folder in (reference, output)
        )
        assert one.keys() == other.keys()
        assert not [
            key
            for key, value in one.items()
            if key != "['config']" and not equal(value, other[key])  # which has the folder
        ], name


def leaves(content):
    """Tensors, numbers and texts in nested mappings and sequences, with their paths."""
    return [(keystr(path), value) for path, value in tree_flatten_with_path(content)[0]]


def equal(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
