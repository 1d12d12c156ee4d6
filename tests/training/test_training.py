"""What a training starts from, trainings with other losses, samplers and precisions, and what the call in Python returns."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from commands import BACKBONE_WIDTH, CONFIG, checkpoint_file, cli_args_for, load_records, prepared
from numeric import shift_seed
from tiny import equal, random_images, tiny_cfg, tiny_model

import demo_sdtps
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.load import with_values
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import Batch
from demo_sdtps.evaluation.protocol import evaluate_reid, make_test_data
from demo_sdtps.evaluation.tables import reid_record
from demo_sdtps.training.reid import ReIDLoss

pytestmark = pytest.mark.usefixtures("shallow")

ANEW = ["heads.original.classifier.weight", "heads.sdtps.classifier.weight"]
HALVES = {"DATASETS.VALIDATION": 0.5, "SOLVER.IMS_PER_BATCH": 4}
CENTERS = ("MODEL.METRIC_LOSS_TYPE", "triplet_center")
STILL = ("SOLVER.MAX_EPOCHS", "1", "SOLVER.BASE_LR", "1e-20")
"""An epoch that leaves the model as it starts."""
IDENTITIES = 6


@pytest.fixture
def train(success, tiny_root, tmp_path):
    """Call train_net.py with some more words, evaluating at the end: → the folder of the run and its configuration."""

    def call(*more, name="run"):
        end = ("SOLVER.EVAL_UNTRAINED", "False", "SOLVER.EVAL_PERIOD", "99")
        seed = ("SOLVER.SEED", shift_seed(1111))
        words = cli_args_for(tiny_root, *end, *seed, "OUTPUT_DIR", tmp_path / name, *more)
        success(train_net.main, *words)
        return tmp_path / name, load_cfg(CONFIG, words[2:])

    return call


def checkpoint(folder, name="last.pth"):
    return torch.load(folder / name, weights_only=True)


def centers(folder):
    """The centers of the SDTPS and of the original feature."""
    return list(checkpoint(folder)["center_losses"].values())


@pytest.fixture(scope="module")
def cfg(tiny_root, tmp_path_factory):
    output = ("OUTPUT_DIR", tmp_path_factory.mktemp("start") / "run")
    return load_cfg(CONFIG, cli_args_for(tiny_root, *output)[2:])


@pytest.mark.parametrize("cameras", [4, 9])
def test_all_but_classifiers_is_loaded(cfg, tmp_path, cameras):
    """Of other identities; embeddings of cameras where there are as many."""
    path = checkpoint_file(tmp_path / "best.pth", cfg, classes=11, cameras=cameras)
    start = torch.load(path, weights_only=True)["model"]
    fresh = prepared(cfg).model.state_dict()
    task = prepared(with_values(cfg, {"TEST.WEIGHT": str(path)}))
    anew = [*ANEW] if cameras == 4 else ["backbone.camera_embedding", *ANEW]
    for name, tensor in task.model.state_dict().items():
        assert torch.equal(tensor, (fresh if name in anew else start)[name]), name
    (note,) = (text for text in task.notes if str(path) in text)
    assert note == f"the weights are those of {path}, but of new ones: {', '.join(anew)}"


def test_a_start_with_other_parts_is_told_and_another_backbone_refused(cfg, tmp_path):
    path = checkpoint_file(tmp_path / "best.pth", with_values(cfg, {"MODEL.HDM": True}))
    start = with_values(cfg, {"TEST.WEIGHT": str(path), "MODEL.GLOBAL_LOCAL": False})
    task = prepared(start)
    assert any(re.search("not used of it: .*hdm.*pife", text) for text in task.notes)
    other = with_values(start, {"MODEL.PATCH_SIZE": 8, "MODEL.STRIDE_SIZE": [8, 8]})
    with pytest.raises(UserError, match=r"pos_embed has the shape \(1, 33, 64\), not \(1, 9, 64\)"):
        prepared(other)


def test_what_cannot_be_started_from(cfg, refusal, tiny_root, tmp_path):
    path = checkpoint_file(tmp_path / "best.pth", cfg)
    words = cli_args_for(tiny_root, "OUTPUT_DIR", "run", "MODEL.PRETRAIN_PATH_T", path)
    assert str(path) in refusal(train_net.main, *words)


@pytest.mark.slow
def test_the_call_in_python_and_the_choice_of_the_best_epoch(cfg, tmp_path, caplog):
    """The identities of the validation split are both query and gallery."""
    path = checkpoint_file(tmp_path / "best.pth", cfg)
    run = with_values(cfg, {**HALVES, "TEST.WEIGHT": str(path)})
    trained = demo_sdtps.train(run)
    output = Path(run.OUTPUT_DIR)
    assert trained.metrics == load_records(output) and not trained.model.training
    assert "best.pth is chosen by the split validation" in caplog.text
    with pytest.raises(UserError, match="already holds a run"):
        demo_sdtps.train(run)
    again = demo_sdtps.train(with_values(run, {"RESUME": "auto"}))
    last = torch.load(output / "last.pth", weights_only=True)
    for model in (trained.model, again.model):
        assert equal(last["model"], model.state_dict())
    assert again.metrics == trained.metrics
    held_out = read_splits(run, ("validation",))["validation"]
    data = make_test_data(run, held_out, held_out)
    (rankings,) = evaluate_reid(run, trained.model, data).values()
    assert trained.metrics[-1]["validation"] == reid_record(rankings)
    evaluation = prepared(with_values(run, {"OUTPUT_DIR": str(tmp_path / "none")})).evaluate(0)
    record = {name: patterns["3"]["mAP"] for name, patterns in evaluation.record.items()}
    assert evaluation.score == record["validation"] != record["patterns"]


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
