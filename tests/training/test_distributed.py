"""Training and evaluation by two processes that torchrun starts: the same as by one."""

import os
import re
import shlex
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from commands import (
    CONFIG,
    FUSION,
    ROOT,
    SMALL,
    call,
    checkpoint_file,
    cli_args_for,
    load_records,
    near,
)
from numeric import assert_close, shift_seed
from processes import TORCHRUN, kill_child, results_of_two, run, run_two, started, wait_for
from tiny import MODEL, equal
from torch import nn
from torch.utils._pytree import tree_map_only

from demo_sdtps.config import MODALITIES, UserError, load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.modeling.checkpoints.loading import CLASSES
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.modeling.losses import total_loss
from demo_sdtps.runtime import distributed
from demo_sdtps.training.reid import class_digest

CONFIGS = ROOT / "configs" / "Synthetic"
MODELS = ("DeMo", "DeMo_SDTPS")
STILL = ("MODEL.DROP_PATH", "0.0", "SOLVER.AMP", "off")
"""Without what every process draws for itself, and in float32 on any processor."""


def roundings(steps):
    """Lengths of the sums in as many steps of training, forward and backward, of both that are compared."""
    return 2 * 2 * steps * MODEL


BATCH, IDENTITIES, CAMERAS, STEPS = 8, 4, 2, 3


def groups() -> list:
    """The groups of training and of the exchange of objects."""
    return [dist.group.WORLD, *distributed._objects] if dist.is_initialized() else []


def own(rows: torch.Tensor) -> torch.Tensor:
    """This process's part of the rows."""
    return torch.stack(distributed.shard_for_rank(rows))


def reid_steps(config_file, *opts):
    """Losses of some steps of this process, and what the model has become."""
    cfg = load_cfg(config_file, opts)
    torch.manual_seed(shift_seed())
    model = make_model(cfg, IDENTITIES, CAMERAS)
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.0  # processes draw for themselves
    network = distributed.wrap_ddp(model.train())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    images = {modality: torch.randn(BATCH, 3, *cfg.INPUT.SIZE_TRAIN) for modality in MODALITIES}
    labels, cameras = torch.arange(BATCH) % IDENTITIES, torch.arange(BATCH) // IDENTITIES
    losses = []
    for _ in range(STEPS):
        local = {modality: own(image) for modality, image in images.items()}
        output = network(local, own(cameras))
        loss, _ = total_loss(
            cfg,
            tree_map_only(torch.Tensor, distributed.all_gather, output),
            distributed.all_gather(own(labels)),
            model.head_weights,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows = torch.arange(5.0).unsqueeze(1)
    norm, features = nn.Sequential(nn.BatchNorm1d(5)), 3 + torch.randn(BATCH, 5)
    normed = distributed.wrap_ddp(norm)(own(features))
    return {
        "normed": distributed.all_gather(normed).detach(),
        "norm": norm.state_dict(),
        "timeouts": [
            group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
            for group in groups()
        ],
        "losses": losses,
        "state": model.state_dict(),
        "shared": distributed.shard_for_rank(range(5)),
        "of batch": distributed.shard_for_rank(range(8)),
        "rows": distributed.all_gather_rows(own(rows), len(rows)),
        "from main": distributed.broadcast_from_main(lambda: f"of {distributed.rank()}"),
        "of all": distributed.all_gather_object(distributed.rank()),
        "is equal": [is_equal("the same"), is_equal(distributed.rank())],
    }


def is_equal(thing) -> bool:
    """Whether the processes agree."""
    try:
        distributed.check_equal(thing, "things")
    except UserError:
        return False
    return True


@pytest.fixture(scope="module", params=MODELS)
def steps(request, tmp_path_factory):
    """What one process, this one, and each of two have after a few steps."""
    words = (CONFIGS / f"{request.param}.yml", *SMALL, *STILL)
    folder = tmp_path_factory.mktemp("stepped")
    return [reid_steps(*words), *results_of_two(folder, __file__, "reid_steps", *words)]


@pytest.mark.slow
def test_two_processes_step_like_one(steps):
    alone, first, second = steps
    for shared in (first, second):
        assert_close(shared["losses"], alone["losses"], *roundings(STEPS))
        assert shared["state"].keys() == alone["state"].keys()
        for name, value in alone["state"].items():
            assert_close(shared["state"][name], value, *roundings(STEPS))
        assert_close(shared["normed"], alone["normed"], BATCH, 2)
        for name, value in alone["norm"].items():
            assert_close(shared["norm"][name], value, BATCH, 2)
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
    known = {CLASSES: class_digest(cfg, read_splits(cfg, ("train",))["train"])}
    checkpoint_file(path, cfg, about=known)
    return ("--teacher", path, "SOLVER.DISTILL_WEIGHT", "20")


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
            assert {"distill/sdtps", "distill_features/original"} < two["losses"].keys()
            # Of 40 samples or more, the scores of one may be equal but for rounding.
            assert two["accuracy"] == pytest.approx(one["accuracy"], abs=1 / 40)


@pytest.mark.slow
def test_one_process_writes(run_folders):
    _, shared = run_folders
    assert len(list(shared.glob("events.*"))) == 1
    assert (shared / "log.txt").read_text().count("epoch 2/2: loss") == 1


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on(run_folders, tiny_root, teacher, tmp_path):
    """A signal to torchrun and its processes, somewhere in the run; the rest of it is as if nothing had happened."""
    output = tmp_path / "run"
    more = ("MODEL.DIST_TRAIN", "True", "RESUME", "auto", *teacher)
    with started(*TORCHRUN, "train_net.py", *words(tiny_root, output, *more)) as starter:
        wait_for(starter, output / "last.pth")
        os.killpg(starter.pid, signal.SIGTERM)
        starter.wait(180)
    assert len(load_records(output)) < 3
    done = run_two("train_net.py", *words(tiny_root, output, *more))
    assert done.returncode == 0, done.stderr
    assert load_records(output) == load_records(run_folders[1])
    folders = (output, run_folders[1])
    last = [torch.load(folder / "last.pth", weights_only=True)["model"] for folder in folders]
    assert equal(*last)


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(own_root, tmp_path):
    """The image is in one process's part only: its sentence names the rank, and the other process does not wait for it."""
    sorted((own_root / "RGBNT201" / "train_171" / "NI").iterdir())[0].write_bytes(b"")
    more = ("DATASETS.CACHE", "no", "SOLVER.EVAL_UNTRAINED", "False")
    done = run(*TORCHRUN, "train_net.py", *words(own_root, tmp_path / "run", *more))
    assert done.returncode == 1 and done.stderr.count("cannot be read (") == 1
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
    more = words(tiny_root, output, "SOLVER.MAX_EPOCHS", "1000")
    with started(*TORCHRUN, "train_net.py", *more) as starter:
        wait_for(starter, output / "metrics.json")
        workers = kill_child(starter)
        starter.communicate(timeout=60)
        assert starter.returncode == 1
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
