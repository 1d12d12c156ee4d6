"""Training and evaluation by two processes that torchrun starts: the same as by one."""
import json
import shutil
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import two_processes
from commands import ROOT, SMALL, near, records_of
from interrupted import call
from launch import command_of, free_port, kill_one_of_two, torchrun, wait_for
from numeric import assert_close, seeded
from tiny import MODEL

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.engine import distributed
from demo_sdtps.modeling.backbones import make_backbone

CONFIGS = ROOT / "configs" / "Synthetic"
MODELS = ("DeMo", "DeMo_SDTPS")
STILL = ("MODEL.DROP_PATH", "0.0", "SOLVER.AMP", "off")
"""Without what every process draws for itself, and in float32 on any processor."""


def roundings(steps):
    """Lengths of the sums in as many steps of training, forward and backward, of both that are compared."""
    return 2 * 2 * steps * MODEL


@pytest.fixture(scope="module")
def two_stepped(tmp_path_factory):
    """The folder of what each of two processes has after a few steps of each model."""
    folder = tmp_path_factory.mktemp("stepped")
    files = ",".join(str(CONFIGS / f"{model}.yml") for model in MODELS)
    done = torchrun("tests/two_processes.py", folder, files, *SMALL, *STILL)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module", params=MODELS)
def stepped(request, two_stepped):
    """What one process, this one, and each of two have after a few steps."""
    alone = two_processes.steps(load_cfg(CONFIGS / f"{request.param}.yml", [*SMALL, *STILL]))
    return [alone, *(torch.load(two_stepped / f"{request.param}_{rank}.pth") for rank in (0, 1))]


def test_two_processes_step_like_one(stepped):
    alone, first, second = stepped
    for shared in (first, second):
        assert_close(shared["losses"], alone["losses"], *roundings(two_processes.STEPS))
        assert shared["state"].keys() == alone["state"].keys()
        for name, value in alone["state"].items():
            assert_close(shared["state"][name], value, *roundings(two_processes.STEPS))
    assert alone["losses"][-1] < 0.9 * alone["losses"][0]


def test_what_the_processes_tell_each_other(stepped):
    alone, first, second = stepped
    assert (alone["shared"], first["shared"], second["shared"]) == ([0, 1, 2, 3, 4], [0, 1, 2], [3, 4, 0])
    assert alone["of batch"] == [*first["of batch"], *second["of batch"]] == list(range(8)) and len(first["of batch"]) == 4
    for found in stepped:
        assert torch.equal(found["rows"], torch.arange(5.0).unsqueeze(1))
        assert found["from main"] == "of 0"
    assert alone["anywhere"] == [True, False, False]
    assert alone["of all"] == [0] and first["of all"] == second["of all"] == [0, 1]
    assert first["anywhere"] == second["anywhere"] == [True, True, False]


RUN = ("SOLVER.MAX_EPOCHS", "2", "SOLVER.EVAL_UNTRAINED", "True", "MODEL.METRIC_LOSS_TYPE", "triplet_center", *STILL,
       "SOLVER.SEED", seeded(1111), "SOLVER.OPTIMIZER_NAME", "SGD")
"""Adam's steps are as long where a gradient is 0 but for roundings."""


def words(root, output, *more):
    return ("--config_file", CONFIGS / "DeMo_SDTPS.yml", "DATASETS.ROOT_DIR", root, "OUTPUT_DIR", output, *SMALL, *RUN, *more)


@pytest.fixture(scope="module")
def trained(tiny_root, tmp_path_factory):
    """The folders of a run by one process and of the same by two."""
    folder = tmp_path_factory.mktemp("trained")
    assert call(words(tiny_root, folder / "1")) == 0
    done = torchrun("train_net.py", *words(tiny_root, folder / "2", "MODEL.DIST_TRAIN", "True"))
    assert done.returncode == 0, done.stderr
    return folder / "1", folder / "2"


@pytest.mark.slow
def test_two_processes_train_like_one(trained):
    alone, shared = (records_of(folder) for folder in trained)
    assert [record["epoch"] for record in shared] == [0, 1, 2]
    for one, two in zip(alone, shared, strict=True):
        assert two["patterns"] == near(one["patterns"], exchanges=3)  # of weights that differ by 1e-4
        if one["epoch"]:
            assert_close(two["loss"], one["loss"], *roundings(6 * one["epoch"]))
            # Of 40 samples or more, the scores of one may be equal but for rounding.
            assert two["accuracy"] == pytest.approx(one["accuracy"], abs=1 / 40)


@pytest.mark.slow
def test_one_process_writes(trained):
    alone, shared = trained
    assert {path.name.split(".")[0] for path in alone.iterdir()} == {path.name.split(".")[0] for path in shared.iterdir()}
    assert len(list(shared.glob("events.*"))) == 1
    log = (shared / "log.txt").read_text()
    assert log.count("epoch 2: loss") == 1 and log.count("the run is in") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.soak)])
def test_a_run_of_two_processes_goes_on(trained, tiny_root, tmp_path, number):
    """SIGTERM to torchrun, as a cluster sends it, or SIGHUP of a lost terminal, somewhere in the run; the rest of it is as if
    nothing had happened."""
    output = tmp_path / "run"
    more = ("MODEL.DIST_TRAIN", "True", "RESUME", "auto")
    starter = subprocess.Popen(command_of("train_net.py", *words(tiny_root, output, *more)), stderr=subprocess.PIPE, text=True)
    try:
        wait_for(starter, output / "metrics.json")
        starter.send_signal(number)
        starter.wait(180)
    finally:
        starter.kill()
        starter.stderr.close()
    assert (output / "last.pth").exists() and len(records_of(output)) < 3
    assert json.loads((output / "run.json").read_text())["status"] == "stopped"
    done = torchrun("train_net.py", *words(tiny_root, output, *more))
    assert done.returncode == 0, done.stderr
    assert records_of(output) == records_of(trained[1])
    one, other = (torch.load(folder / "last.pth", weights_only=True)["model"] for folder in (output, trained[1]))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(own_root, tmp_path):
    """The image is in one process's share only: its sentence is reported, and the other does not wait for it."""
    sorted((own_root / "RGBNT201" / "train_171" / "NI").iterdir())[0].write_bytes(b"")
    more = ("DATASETS.CACHE", "no", "SOLVER.EVAL_UNTRAINED", "False")
    done = torchrun("train_net.py", *words(own_root, tmp_path / "run", *more))
    assert done.returncode == 1 and done.stderr.count("cannot be read (it is empty)") == 1
    assert "train_net.py\", line" not in done.stderr  # no stack trace of either process


DIFFERENCES = {
    "the configuration": (("SOLVER.SEED", "7", "SOLVER.BASE_LR", "0.5"),
                          "SOLVER.BASE_LR is 0.005 in rank 0 and 0.5 in rank 1"),
    "the processor": ((), "the precision of SOLVER.AMP is torch.bfloat16 in rank 0 and None in rank 1"),
    "the test set": ((), "the data 'query NI' is 32 entries with the digest "),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", [
    *(pytest.param(what, marks=pytest.mark.soak) for what in ("the configuration", "the processor")), "the test set"])
def test_processes_that_differ_end_with_one_sentence(tiny_root, own_root, tmp_path, what):
    """They neither wait for each other nor compute."""
    more, expected = DIFFERENCES[what]
    for rank, root in enumerate((tiny_root, own_root)):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "data").symlink_to(root)
    if what == "the test set":
        first, second, *_ = sorted((own_root / "RGBNT201" / "test" / "NI").iterdir())
        shutil.copy(second, first)
    precision = "auto" if what == "the processor" else "off"
    done = torchrun("tests/unlike_ranks.py", tmp_path, *words("data", tmp_path / "run", "SOLVER.AMP", precision), "--", *more)
    assert done.returncode == 1 and done.stderr.count("error: The processes of this run do not agree: ") == 1
    assert expected in done.stderr and "train_net.py\", line" not in done.stderr and "SIGABRT" not in done.stderr
    assert {path.name for path in tmp_path.glob("code *")} == {"code 2 of rank 0", "code 2 of rank 1"}
    processes = [path.name.split()[1] for path in tmp_path.glob("process *")]
    assert len(processes) == 2 and not any(Path(f"/proc/{process}").exists() for process in processes)
    assert not (tmp_path / "run").exists()


def test_what_several_processes_cannot_do(tiny_root, tmp_path, command, monkeypatch):
    from demo_sdtps import train_net

    code, _, stderr = command(train_net.main, *words(tiny_root, tmp_path / "run", "MODEL.DIST_TRAIN", "True"))
    assert code == 2 and "torchrun --nproc_per_node" in stderr and not (tmp_path / "run").exists()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match=r"batches of 4 identities .* 3 processes cannot share equally"):
        distributed.check_launch(load_cfg(CONFIGS / "DeMo_SDTPS.yml", SMALL))
    with pytest.raises(UserError, match="batches of 32 captions, which 3 processes cannot share equally"):
        distributed.check_shares(load_cfg(None, ["SOLVER.IMS_PER_BATCH", "32"]), 32, "captions")


@pytest.mark.slow
@pytest.mark.soak
def test_one_process_reads_what_training_begins_with(tiny_root, tmp_path):
    """The pretrained weights, and last.pth of a run that goes on; the numbers are those of one process."""
    weights, pretrained = tmp_path / "backbone.pth", ("MODEL.PRETRAIN_PATH_T", tmp_path / "backbone.pth")
    torch.save(make_backbone(load_cfg(CONFIGS / "DeMo_SDTPS.yml", SMALL), 1).vit.state_dict(), weights)
    assert call(words(tiny_root, tmp_path / "1", *pretrained, "SOLVER.MAX_EPOCHS", "1")) == 0
    for epochs, watched, more in ((1, weights, ()), (2, tmp_path / "2" / "last.pth", ("RESUME", "auto"))):
        seen = tmp_path / f"who opened {watched.name}"
        seen.mkdir()
        done = torchrun("tests/opened_by.py", seen, watched, "train_net",
                        *words(tiny_root, tmp_path / "2", *pretrained, "SOLVER.MAX_EPOCHS", epochs, *more))
        assert done.returncode == 0 and [path.name for path in seen.iterdir()] == ["opened by rank 0"], done.stderr
        assert records_of(tmp_path / "2")[-1]["epoch"] == epochs
    one, two = (records_of(tmp_path / number)[1] for number in "12")
    assert_close(two["loss"], one["loss"], *roundings(6))


def test_the_old_flag_is_understood(tiny_root, tmp_path, command):
    from demo_sdtps import train_net

    code, _, stderr = command(train_net.main, "--local_rank=0", *words(tiny_root, tmp_path / "run", "SOLVER.MAX_EPOCHS", "0"))
    assert code == 2 and "MAX_EPOCHS" in stderr and "local_rank" not in stderr


@pytest.mark.slow
def test_a_process_that_dies_ends_the_others(tiny_root, tmp_path):
    """One that is killed says nothing; the other, which waits for it in an exchange, is ended too."""
    output = tmp_path / "run"
    kill_one_of_two(output / "metrics.json", "train_net.py", *words(tiny_root, output, "SOLVER.MAX_EPOCHS", "1000"))


@pytest.mark.slow
def test_two_processes_that_cannot_fetch_their_weights_end_with_one_sentence(tiny_root, tmp_path):
    hub = ("MODEL.PATCH_SIZE", "0", "MODEL.STRIDE_SIZE", "[16, 16]", "INPUT.SIZE_TRAIN", "[64, 64]",
           "INPUT.SIZE_TEST", "[64, 64]", "MODEL.PRETRAIN_PATH_T", "hub")
    done = torchrun("train_net.py", *words(tiny_root, tmp_path / "run", *hub))
    assert done.returncode != 0 and done.stderr.count("timm could not download") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.soak
def test_processes_wait_longer_than_torch_does_by_default(tmp_path):
    done = torchrun("tests/waits_long.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text() == "('read', {'x': tensor([1.])}, 'read')"


def test_a_process_that_never_starts_is_waited_for_a_limited_time(monkeypatch):
    for name, value in {"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(distributed, "START", timedelta(seconds=1))
    with pytest.raises(UserError, match="Not all of the 2 processes of this run have started"):
        distributed.met()
