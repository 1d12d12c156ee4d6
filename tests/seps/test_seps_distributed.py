"""SEPS by two processes, on one machine or on two: the same as by one."""

import json

import pytest
import torch
import two_seps_processes
from commands import load_records
from forked import run_two
from numeric import assert_close
from seps_tiny import PATH, cli_args_for, near, train

pytestmark = pytest.mark.slow


# Steps

STEP = (*PATH, *PATH, *PATH)
"""Lengths of the sums (tests/helpers/numeric.py) in a step: to the loss, and back."""
BOTH = 2 * 6 * STEP
"""… and in the six steps of both."""


@pytest.fixture(scope="module")
def steps_folder(shapes_root, tmp_path_factory):
    """The folder of what each of two processes has after a few steps."""
    folder = tmp_path_factory.mktemp("stepped")
    done = run_two("tests/helpers/two_seps_processes.py", folder, shapes_root)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", params=two_seps_processes.VERSIONS)
def steps(request, shapes_root, steps_folder):
    """What one process, this one, and each of two have after a few steps."""
    alone = two_seps_processes.steps(shapes_root, request.param)
    return [
        request.param,
        alone,
        *(torch.load(steps_folder / f"{request.param}_{rank}.pth") for rank in (0, 1)),
    ]


def test_two_processes_step_like_one(steps):
    version, alone, *shared = steps
    for actual in shared:
        # where the roundings of six steps may double: those of both after some hundred operations
        if version == "bf16":
            assert_close(actual["losses"][0], alone["losses"][0], *200 * [1], dtype=torch.bfloat16)
            continue
        for one, two in zip(actual["losses"], alone["losses"], strict=True):
            assert_close(one, two, *BOTH)
        furthest = max(
            float((value - alone["start"][name]).abs().max())
            for name, value in alone["state"].items()
        )
        for name, value in alone["state"].items():
            assert_close(actual["state"][name], value, *BOTH, scale=furthest)
        for one, two in zip(alone["parts"], actual["parts"], strict=True):
            assert one.keys() == two.keys() and two["local"] == one["local"] / 2
            for name in one.keys() - {"local"}:
                assert_close(two[name], one[name], *BOTH)
    first, second = shared
    assert first["losses"] == second["losses"]
    assert all(torch.equal(first["state"][name], value) for name, value in second["state"].items())
    assert [step["hardest"] for step in alone["parts"]] == 3 * [False] + 3 * [True]


def test_two_processes_evaluate_like_one(steps):
    version, alone, first, second = steps
    for one, two, three in zip(
        alone["similarities"], first["similarities"], second["similarities"], strict=True
    ):
        assert torch.equal(two, three)
        if version != "bf16":
            assert_close(two, one, *BOTH)
    assert first["recalls"] == second["recalls"]
    assert [recalls["rSum"] > 0 for recalls in first["recalls"]] == [True, True]


# Runs

RUN = ("SOLVER.MAX_EPOCHS", "4", "SOLVER.EVAL_PERIOD", "2")


@pytest.mark.soak
def test_two_processes_train_and_test_like_one(shapes_root, tmp_path):
    train(shapes_root, tmp_path / "1", *RUN)
    words = cli_args_for(shapes_root, "OUTPUT_DIR", tmp_path / "2", *RUN)
    done = run_two("demo_sdtps.commands", "seps", "train", *words)
    assert done.returncode == 0, done.stderr
    alone, shared = (load_records(tmp_path / name) for name in "12")
    assert [record["epoch"] for record in shared] == [1, 2, 3, 4]
    for one, two in zip(alone, shared, strict=True):
        assert one.keys() == two.keys()
        assert [two[name] for name in ("loss", "align", "ratio", "lr")] == pytest.approx(
            [one[name] for name in ("loss", "align", "ratio", "lr")], rel=1e-4
        )
        for split in {"dev", "test"} & one.keys():
            assert two[split] == near(one[split], split)
    words = ("--weight", tmp_path / "2" / "last.pth", "--json", tmp_path / "x.json")
    done = run_two("demo_sdtps.commands", "seps", "test", *words)
    assert done.returncode == 0 and done.stdout.count("rSum") == 1, done.stderr
    assert json.loads((tmp_path / "x.json").read_text())["test"] == near(shared[-1]["test"], "test")
