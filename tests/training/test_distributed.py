"""Training and evaluation by two processes that torchrun starts: the same as by one."""

import os
import re
import shlex
import signal

import pytest
import torch
import two_processes
from commands import (
    CONFIG,
    FUSION,
    ROOT,
    SMALL,
    checkpoint_file,
    cli_args_for,
    load_records,
    near,
    read_cases,
)
from forked import run_two
from interrupted import call
from launch import kill_one_of_two, torchrun, torchrun_started, wait_for
from numeric import assert_close, shift_seed
from tiny import MODEL

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.runtime import distributed

CONFIGS = ROOT / "configs" / "Synthetic"
MODELS = ("DeMo", "DeMo_SDTPS")
STILL = ("MODEL.DROP_PATH", "0.0", "SOLVER.AMP", "off")
"""Without what every process draws for itself, and in float32 on any processor."""


def roundings(steps):
    """Lengths of the sums in as many steps of training, forward and backward, of both that are compared."""
    return 2 * 2 * steps * MODEL


@pytest.fixture(scope="module")
def steps_folder(tmp_path_factory):
    """The folder of what each of two processes has after a few steps of each model."""
    folder = tmp_path_factory.mktemp("stepped")
    files = ",".join(str(CONFIGS / f"{model}.yml") for model in MODELS)
    done = run_two("tests/helpers/two_processes.py", folder, files, *SMALL, *STILL)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", params=MODELS)
def steps(request, steps_folder):
    """What one process, this one, and each of two have after a few steps."""
    alone = two_processes.steps(load_cfg(CONFIGS / f"{request.param}.yml", [*SMALL, *STILL]))
    return [alone, *(torch.load(steps_folder / f"{request.param}_{rank}.pth") for rank in (0, 1))]


@pytest.mark.slow
def test_two_processes_step_like_one(steps):
    alone, first, second = steps
    for shared in (first, second):
        assert_close(shared["losses"], alone["losses"], *roundings(two_processes.STEPS))
        assert shared["state"].keys() == alone["state"].keys()
        for name, value in alone["state"].items():
            assert_close(shared["state"][name], value, *roundings(two_processes.STEPS))
        assert_close(shared["normed"], alone["normed"], two_processes.BATCH, 2)
        for name, value in alone["norm"].items():
            assert_close(shared["norm"][name], value, two_processes.BATCH, 2)
    assert alone["losses"][-1] < 0.9 * alone["losses"][0]


@pytest.mark.slow
def test_what_the_processes_tell_each_other(steps):
    alone, first, second = steps
    assert [record["shared"] for record in steps] == [[0, 1, 2, 3, 4], [0, 1, 2], [3, 4, 0]]
    assert [record["of batch"] for record in steps] == [[*range(8)], [0, 1, 2, 3], [4, 5, 6, 7]]
    for actual in steps:
        assert torch.equal(actual["rows"], torch.arange(5.0).unsqueeze(1))
        assert actual["from main"] == "of 0"
    assert alone["of all"] == [0] and first["of all"] == second["of all"] == [0, 1]
    assert first["timeouts"] == [30 * 60, 365 * 24 * 3600]
    assert [record["is equal"] for record in steps] == [[True, True], [True, False], [True, False]]


RUN = (
    *shlex.split("SOLVER.MAX_EPOCHS 2 SOLVER.EVAL_UNTRAINED True SOLVER.OPTIMIZER_NAME SGD"),
    *("MODEL.METRIC_LOSS_TYPE", "triplet_center", "SOLVER.SEED", shift_seed(1111)),
    *STILL,
)
"""Adam's steps are as long where a gradient is 0 but for roundings."""


def words(root, output, *more):
    return cli_args_for(root, "OUTPUT_DIR", output, *RUN, *more)


@pytest.fixture(scope="module")
def teacher(tiny_root, tmp_path_factory):
    """Words for a run that follows the logits of an untrained model."""
    path = tmp_path_factory.mktemp("teacher") / "last.pth"
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, *FUSION)[2:])
    return ("--teacher", checkpoint_file(path, cfg), "SOLVER.DISTILL_WEIGHT", "20")


@pytest.fixture(scope="module")
def run_folders(tiny_root, teacher, tmp_path_factory):
    """The folders of a run by one process and of the same by two."""
    folder = tmp_path_factory.mktemp("trained")
    assert call(words(tiny_root, folder / "1", *teacher)) == 0
    more = ("MODEL.DIST_TRAIN", "True", *teacher)
    done = run_two("train_net.py", *words(tiny_root, folder / "2", *more))
    assert done.returncode == 0, done.stderr
    return folder / "1", folder / "2"


@pytest.mark.slow
def test_two_processes_train_like_one(run_folders):
    alone, shared = (load_records(folder) for folder in run_folders)
    assert [record["epoch"] for record in shared] == [0, 1, 2]
    for one, two in zip(alone, shared, strict=True):
        # of weights that differ by 1e-4
        assert two["patterns"] == near(one["patterns"], exchanges=3)
        if one["epoch"]:
            assert_close(two["loss"], one["loss"], *roundings(6 * one["epoch"]))
            assert {"distill/sdtps", "distill/original"} < two["losses"].keys()
            # Of 40 samples or more, the scores of one may be equal but for rounding.
            assert two["accuracy"] == pytest.approx(one["accuracy"], abs=1 / 40)


@pytest.mark.slow
def test_one_process_writes(run_folders):
    alone, shared = run_folders
    assert {path.name.split(".")[0] for path in alone.iterdir()} == {
        path.name.split(".")[0] for path in shared.iterdir()
    }
    assert len(list(shared.glob("events.*"))) == 1
    log = (shared / "log.txt").read_text()
    assert log.count("epoch 2/2: loss") == 1 and log.count("the run is in") == 1


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on(run_folders, tiny_root, teacher, tmp_path):
    """A signal to torchrun and its processes, somewhere in the run; the rest of it is as if nothing had happened."""
    output = tmp_path / "run"
    more = ("MODEL.DIST_TRAIN", "True", "RESUME", "auto", *teacher)
    with torchrun_started("train_net.py", *words(tiny_root, output, *more)) as starter:
        wait_for(starter, output / "last.pth")
        os.killpg(starter.pid, signal.SIGTERM)
        starter.wait(180)
    assert len(load_records(output)) < 3
    done = run_two("train_net.py", *words(tiny_root, output, *more))
    assert done.returncode == 0, done.stderr
    assert load_records(output) == load_records(run_folders[1])
    one, other = (
        torch.load(folder / "last.pth", weights_only=True)["model"]
        for folder in (output, run_folders[1])
    )
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(own_root, tmp_path):
    """The image is in one process's part only: its sentence names the rank, and the other process does not wait for it."""
    sorted((own_root / "RGBNT201" / "train_171" / "NI").iterdir())[0].write_bytes(b"")
    more = ("DATASETS.CACHE", "no", "SOLVER.EVAL_UNTRAINED", "False")
    done = torchrun("train_net.py", *words(own_root, tmp_path / "run", *more))
    assert done.returncode == 1 and done.stderr.count("cannot be read (it is empty)") == 1
    assert re.search(r"^error: rank \d: The image", done.stderr, re.M)
    assert 'train_net.py", line' not in done.stderr  # no stack trace of either process


def test_what_several_processes_cannot_do(tiny_root, tmp_path, command, monkeypatch):
    from demo_sdtps.commands import train as train_net

    code, _, stderr = command(
        train_net.main, *words(tiny_root, tmp_path / "run", "MODEL.DIST_TRAIN", "True")
    )
    assert code == 2 and "torchrun --nproc_per_node" in stderr and not (tmp_path / "run").exists()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(
        UserError, match=r"batches of 4 identities .* 3 processes cannot divide equally"
    ):
        distributed.check_launch(load_cfg(CONFIGS / "DeMo_SDTPS.yml", SMALL))
    with pytest.raises(
        UserError, match="batches of 32 captions, which 3 processes cannot divide equally"
    ):
        distributed.check_divisible(load_cfg(None, ["SOLVER.IMS_PER_BATCH", "32"]), 32, "captions")


@pytest.mark.slow
def test_a_process_that_dies_ends_the_others(tiny_root, tmp_path):
    """One that is killed says nothing; the other, which waits for it in an exchange, is ended too."""
    output = tmp_path / "run"
    kill_one_of_two(
        output / "metrics.json",
        "train_net.py",
        *words(tiny_root, output, "SOLVER.MAX_EPOCHS", "1000"),
    )


@pytest.fixture(scope="module")
def weights(tiny_root, tmp_path_factory):
    cfg = load_cfg(CONFIG, [*cli_args_for(tiny_root)[2:], "TEST.AMP", "off"])
    return checkpoint_file(tmp_path_factory.mktemp("weights") / "last.pth", cfg)


@pytest.mark.slow
@pytest.mark.soak
def test_two_processes_evaluate_like_one(command, weights, tmp_path):
    from demo_sdtps.commands import test as test_net

    words = ("--weight", weights, "TEST.MISS", "all", "--json")
    code, _, stderr = command(test_net.main, *words, tmp_path / "1.json")
    assert code == 0, stderr
    done = run_two("test_net.py", *words, tmp_path / "2.json")
    assert done.returncode == 0 and done.stdout.count("return pattern") == 1, done.stderr
    one, two = (read_cases(tmp_path / name) for name in ("1.json", "2.json"))
    assert list(one) == list(two) and all(two[case] == near(record) for case, record in one.items())
