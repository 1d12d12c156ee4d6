"""SEPS by two processes, on one machine or on two: the same as by one."""
import json
import os
import signal
import subprocess
import time

import pytest
import torch
import two_seps_processes
from commands import contents, records_of
from launch import children_of, command_of, on_two_machines, start_on_two_machines, torchrun, wait_for
from numeric import assert_close
from seps_tiny import PATH, cli_args_for, test_seps, train
from test_seps_training import near

from demo_sdtps.config.files import temporaries
from demo_sdtps.engine.run.output import OWN

pytestmark = pytest.mark.slow
STEP = (*PATH, *PATH, *PATH)
"""Lengths of the sums (tests/numeric.py) in a step: to the loss, and back."""
BOTH = 2 * 6 * STEP
"""… and in the six steps of both."""


# Steps

@pytest.fixture(scope="module")
def two_stepped(shapes_root, tmp_path_factory):
    """The folder of what each of two processes has after a few steps."""
    folder = tmp_path_factory.mktemp("stepped")
    for done in on_two_machines("tests/two_seps_processes.py", folder, shapes_root):
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", params=two_seps_processes.VERSIONS)
def stepped(request, shapes_root, two_stepped):
    """What one process, this one, and each of two have after a few steps."""
    alone = two_seps_processes.steps(shapes_root, request.param)
    return [request.param, alone, *(torch.load(two_stepped / f"{request.param}_{rank}.pth") for rank in (0, 1))]


def test_two_processes_step_like_one(stepped):
    version, alone, *shared = stepped
    for found in shared:
        if version == "bf16":  # where the roundings of six steps may double: those of both after some hundred operations
            assert_close(found["losses"][0], alone["losses"][0], *200 * [1], dtype=torch.bfloat16)
            continue
        for one, two in zip(found["losses"], alone["losses"], strict=True):
            assert_close(one, two, *BOTH)
        furthest = max(float((value - alone["start"][name]).abs().max()) for name, value in alone["state"].items())
        for name, value in alone["state"].items():
            assert_close(found["state"][name], value, *BOTH, scale=furthest)
        for one, two in zip(alone["parts"], found["parts"], strict=True):
            assert one.keys() == two.keys() and two["own"] == one["own"] / 2
            for name in one.keys() - {"own"}:
                assert_close(two[name], one[name], *BOTH)
    first, second = shared
    assert first["losses"] == second["losses"]
    assert all(torch.equal(first["state"][name], value) for name, value in second["state"].items())
    assert [part["hardest"] for part in alone["parts"]] == 3 * [False] + 3 * [True]


def test_two_processes_evaluate_like_one(stepped):
    version, alone, first, second = stepped
    for one, two, three in zip(alone["similarities"], first["similarities"], second["similarities"], strict=True):
        assert torch.equal(two, three)
        if version != "bf16":
            assert_close(two, one, *BOTH)
    assert first["recalls"] == second["recalls"]
    assert [recalls["rSum"] > 0 for recalls in first["recalls"]] == [True, True]


# Runs

RUN = (*two_seps_processes.KEEP_ALL, "SOLVER.MAX_EPOCHS", "4", "SOLVER.EVAL_PERIOD", "2", "SOLVER.CHECKPOINT_MINUTES", "1e-6")


@pytest.fixture(scope="module")
def trained(shapes_root, tmp_path_factory):
    """The folders of a run by one process and of the same by two."""
    folder = tmp_path_factory.mktemp("trained")
    train(shapes_root, folder / "1", *RUN)
    done = torchrun("train_seps.py", *cli_args_for(shapes_root, "OUTPUT_DIR", folder / "2", *RUN))
    assert done.returncode == 0, done.stderr
    return folder / "1", folder / "2"


@pytest.mark.soak
def test_two_processes_train_like_one(trained):
    alone, shared = map(records_of, trained)
    assert [record["epoch"] for record in shared] == [1, 2, 3, 4]
    for one, two in zip(alone, shared, strict=True):
        assert one.keys() == two.keys()
        assert two["lr"] == one["lr"]
        for name in ("loss", "align", "ratio"):
            assert_close(two[name], one[name], *2 * BOTH)  # of twelve steps
        for split in {"dev", "test"} & one.keys():
            assert two[split] == near(one[split], split)


@pytest.mark.soak
def test_one_process_writes(trained):
    alone, shared = trained
    assert {path.name.split(".")[0] for path in alone.iterdir()} == {path.name.split(".")[0] for path in shared.iterdir()}
    assert len(list(shared.glob("events.*"))) == 1
    log = (shared / "log.txt").read_text()
    assert log.count("epoch 4: loss") == 1 and log.count("the run is in") == 1


@pytest.mark.soak
def test_a_run_of_two_processes_goes_on(trained, shapes_root, tmp_path):
    """The process of one machine is killed, and that of the other ends too; SIGTERM comes to torchrun, as a cluster sends it;
    the rest of the run is as if nothing had happened."""
    output = tmp_path / "run"
    words = cli_args_for(shapes_root, "OUTPUT_DIR", output, *RUN, "RESUME", "auto")
    starters = start_on_two_machines("train_seps.py", *words)
    interrupt(starters, output, 1, lambda: os.kill(children_of(starters[1].pid)[0], signal.SIGKILL))
    starters = [subprocess.Popen(command_of("train_seps.py", *words), stderr=subprocess.PIPE, text=True)]
    interrupt(starters, output, 2, starters[0].terminate)
    assert json.loads((output / "run.json").read_text())["status"] == "stopped"
    done = torchrun("train_seps.py", *words)
    assert done.returncode == 0, done.stderr
    assert records_of(output) == records_of(trained[1]) and not list(temporaries(output, OWN))
    one, other = (torch.load(folder / "last.pth", weights_only=True)["model"] for folder in (output, trained[1]))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def interrupt(starters, output, epochs, act):
    """After so many epochs `act`, which ends all processes within a minute; what they leave is whole."""
    try:
        wait_for(starters[0], output / "metrics.json")
        while len(records_of(output)) < epochs:
            time.sleep(0.05)
        workers = [child for starter in starters for child in children_of(starter.pid)]
        assert len(workers) == 2
        act()
        began = time.monotonic()
        assert all(starter.wait(180) != 0 for starter in starters) and time.monotonic() - began < 60
        assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)
    finally:
        for starter in starters:
            starter.kill()
            starter.communicate()
    assert len(records_of(output)) < 4 and torch.load(output / "last.pth", weights_only=True)["model"]


@pytest.mark.soak
def test_two_machines_test_like_one_process(trained, command, tmp_path):
    words = ["--weight", trained[0] / "last.pth", "TEST.FOLDS", "2", "--json"]
    code, printed, stderr = command(test_seps.main, *words, tmp_path / "1.json")
    assert code == 0, stderr
    done = on_two_machines("test_seps.py", *words, tmp_path / "2.json")
    assert [process.returncode for process in done] == [0, 0], done
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    assert "".join(process.stdout for process in done) == printed


@pytest.mark.soak
@pytest.mark.parametrize(("of_second", "expected"), [
    (("SOLVER.MARGIN", "0.3"), "error: The processes of this run do not agree: SOLVER.MARGIN is 0.2 in rank "),
    (("SOLVER.MARGINS", "0.3"), "error: Unknown key 'SOLVER.MARGINS'")])
def test_machines_that_differ_end_with_one_sentence(shapes_root, tmp_path, of_second, expected):
    words = cli_args_for(shapes_root, "OUTPUT_DIR", tmp_path / "run")
    said = "".join(done.stderr for done in on_two_machines("train_seps.py", *words, of_second=of_second))
    assert said.count("error: ") == said.count(expected) == 1, said
    assert "train_seps.py\", line" not in said and contents(tmp_path) == {}
