"""SEPS by two processes, on one machine or on two: the same as by one."""

import json
from pathlib import Path

import pytest
import torch
from commands import load_records
from numeric import assert_close, shift_seed
from processes import results_of_two, run_two
from seps_tiny import PATH, cfg_for, cli_args_for, near, train

from demo_sdtps.datasets.loaders import epoch_sampler
from demo_sdtps.runtime.device import autocast, choose_precision
from seps.captions import caption_batches, caption_loader, encode_captions
from seps.evaluation import (
    evaluate_retrieval,
    make_retrieval_data,
    read_caption_splits,
    similarities,
)
from seps.model import load_tokenizer, make_seps
from seps.training import BatchLoss

pytestmark = pytest.mark.slow


# Steps

STEP = (*PATH, *PATH, *PATH)
"""Lengths of the sums (tests/helpers/numeric.py) in a step: to the loss, and back."""
BOTH = 2 * 6 * STEP
"""… and in the six steps of both."""


VERSIONS = {
    "paper": (),
    "open": ("MODEL.PAPER_VERSION", "False", "DATASETS.LONG_CAPTIONS", "no"),
    "bf16": ("SOLVER.AMP", "bf16"),
}
KEEP_ALL = ("MODEL.SDTPS_SPARSE_RATIO", "1.0")
"""The choice of patches would hang on roundings here and there, and the losses and all that follows on the choice."""
EPOCHS = (1, 2)
"""With all negatives, and with the hardest."""


def seps_steps(root, version):
    """Losses of some steps, what the model has become, and its evaluation."""
    cfg = cfg_for(Path(root), *KEEP_ALL, *VERSIONS[version])
    splits, tokenizer = read_caption_splits(cfg), load_tokenizer(cfg)
    torch.manual_seed(shift_seed())
    model, _ = make_seps(cfg)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    tokens = {name: encode_captions(cfg, split, tokenizer) for name, split in splits.items()}
    loader = caption_loader(cfg, splits["train"])
    dev, test = (
        make_retrieval_data(cfg, splits[name], tokens[name], folds)
        for name, folds in (("dev", 1), ("test", 2))
    )
    batch_loss = BatchLoss(cfg, model.train())
    device = torch.device("cpu")
    precision = choose_precision(cfg.SOLVER.AMP, device)
    # AdamW's first steps are the signs of gradients
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    losses, parts = [], []
    for epoch in EPOCHS:
        batch_loss.begin_epoch(epoch)
        epoch_sampler(loader).begin(epoch)
        for batch in caption_batches(loader, tokens["train"]):
            with autocast(device, precision):
                loss, count, sums = batch_loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            parts.append(
                {
                    "local": len(batch.images),
                    "count": count,
                    "hardest": batch_loss.losses.align.max_violation,
                }
                | {name: float(total) for name, total in sums.items()}
            )
    return {
        "losses": losses,
        "parts": parts,
        "start": start,
        "state": model.state_dict(),
        "similarities": [similarities(model, data) for data in (dev, test)],
        "recalls": [evaluate_retrieval(model, data) for data in (dev, test)],
    }


@pytest.fixture(scope="module", params=VERSIONS)
def steps(request, shapes_root, tmp_path_factory):
    """The version, and what one process, this one, and each of two have after a few steps."""
    words, folder = (shapes_root, request.param), tmp_path_factory.mktemp("stepped")
    two = results_of_two(folder, __file__, "seps_steps", *words)
    return [request.param, seps_steps(*words), *two]


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
    done = run_two("-m", "demo_sdtps.commands", "seps", "train", *words)
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
    done = run_two("-m", "demo_sdtps.commands", "seps", "test", *words)
    assert done.returncode == 0 and done.stdout.count("rSum") == 1, done.stderr
    assert json.loads((tmp_path / "x.json").read_text())["test"] == near(shared[-1]["test"], "test")
