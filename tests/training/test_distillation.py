"""A training follows the logits and features of a trained model, its teacher, and refuses one that does not fit."""

import shutil
from dataclasses import replace

import pytest
import torch
from commands import (
    CONFIG,
    assert_same,
    at,
    call,
    checkpoint_file,
    cli_args_for,
    kill,
    leaves,
    prepared,
    three_epochs,
)
from numeric import assert_close
from tiny import MODEL, equal, exact, random_images

from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.config.load import with_values
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import Batch
from demo_sdtps.modeling.checkpoints.loading import CLASSES
from demo_sdtps.training.loop import Meter
from demo_sdtps.training.reid import class_digest
from demo_sdtps.training.run import PART

pytestmark = pytest.mark.usefixtures("shallow")

DENSE = ("MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "4", "MODEL.USE_SDTPS", "False")
SLIM = ("MODEL.SLIM_BLOCKS", "[0]", "MODEL.SLIM_KEEP", "[0.5]")


def saved(path, cfg, **more):
    """A checkpoint of an untrained model, as a run writes it."""
    checkpoint_file(path, cfg)
    content = torch.load(path, weights_only=True)
    torch.save(content | prepared(cfg).about | more, path)
    return path


@pytest.fixture(scope="module")
def cfg(tiny_root):
    """Of a model with the heads sdtps, moe and original."""
    return load_cfg(CONFIG, cli_args_for(tiny_root, *DENSE[:6])[2:])


@pytest.fixture(scope="module")
def dense(tiny_root, tmp_path_factory):
    """Weights with the heads moe and original."""
    folder = tmp_path_factory.mktemp("dense")
    return saved(folder / "best.pth", load_cfg(CONFIG, cli_args_for(tiny_root, *DENSE)[2:]))


@pytest.fixture(scope="module")
def task(cfg, dense):
    return prepared(with_values(cfg, {"MODEL.TEACHER": str(dense)}))


def make_batch(seed):
    images, cameras = random_images(seed, batch=8, size=(32, 16))
    return Batch(images, torch.arange(8) % 4, cameras)


def test_its_features_and_logits_are_those_of_its_evaluation(task, dense):
    """Of one sample the same alone, without gradients, in the precision of the training, and it learns nothing."""
    teacher, batch = task.loss.teacher, make_batch(1)
    before = torch.load(dense, weights_only=True)["model"]
    targets = teacher(batch)
    task.model.train()
    task.loss(batch).mean.backward()
    assert [*targets] == ["moe", "original"]
    assert equal(teacher.model.state_dict(), before)
    model, images = exact(teacher.model, batch.images)
    features = model(images, batch.cameras, return_pattern=3).float()
    by_head = dict(zip(("original", "moe"), features.split([3 * 64, 7 * 64], dim=1), strict=True))
    for name, (actual, feature) in targets.items():
        assert not actual.requires_grad and not feature.requires_grad
        assert_close(feature, by_head[name], *MODEL, scale=float(by_head[name].abs().max()))
        norm, weight = model.heads[name].bottleneck, model.heads[name].classifier.weight
        normed = (by_head[name] - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        largest = float(normed.norm(dim=1).max() * weight.norm(dim=1).max())
        assert_close(actual, normed @ weight.T, *MODEL, len(weight.T), scale=largest)
    with torch.autocast("cpu", torch.bfloat16):
        assert {each.logits.dtype for each in teacher(batch).values()} == {torch.bfloat16}


def test_the_loss_follows_it_and_a_head_that_it_lacks_does_not(task, dense, cfg):
    batch = make_batch(2)
    sums = task.loss(batch).sums
    followed = {name for name in sums if name.startswith(f"{PART}distill")}
    assert followed == {
        f"{PART}{kind}/{head}"
        for kind in ("distill", "distill_features")
        for head in ("moe", "original")
    }
    assert f"the teacher is {dense}, of the heads moe, original" in task.notes
    without = prepared(cfg)
    without.model.load_state_dict(task.model.state_dict())
    assert not [name for name in without.loss(batch).sums if "distill" in name]


def test_the_training_draws_what_one_without_a_teacher_draws(cfg, dense):
    states = []
    for path in ("", str(dense)):
        prepared(with_values(cfg, {"MODEL.TEACHER": path}))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.fixture(scope="module")
def words(tiny_root, dense):
    """A slimmed model's training by a teacher, with everything random, and everything that has a state."""
    return three_epochs(tiny_root, *DENSE[:6], *SLIM, "--from", dense, "SOLVER.MAX_EPOCHS", "2")


@pytest.mark.slow
def test_a_resumed_run_ends_like_an_uninterrupted_one(words, dense, tmp_path, capsys):
    """The teacher is in no checkpoint, but its digest; another one is refused, the same one in another place is not."""
    teacher = shutil.copy(dense, tmp_path / "teacher.pth")
    words = [*words, "--teacher", teacher, "RESUME", "auto"]  # which is not --from's
    assert call([*words, "OUTPUT_DIR", tmp_path / "whole"]) == 0
    run = [*words, "OUTPUT_DIR", tmp_path / "run"]
    with at(Meter, "update", 7, kill):
        assert call(run) == 130
    other = torch.load(dense, weights_only=True)
    other["model"]["heads.moe.bottleneck.weight"] *= 1.001
    torch.save(other, teacher)
    assert call(run) == 2 and "MODEL.TEACHER, are not those" in capsys.readouterr().err
    assert call([*run, "--teacher", dense]) == 0
    assert_same(tmp_path / "whole", tmp_path / "run")
    for name in ("last.pth", "best.pth"):
        content = torch.load(tmp_path / "run" / name, weights_only=True)
        assert not [name for name, _ in leaves(content) if "TEACHER" in name]


REFUSED = {
    "other identities": ({CLASSES: "0" * 32}, (), "trained on other identities, images of them or"),
    "identities that an older file does not name": ({CLASSES: None}, (), "trained on other"),
    "other modalities": ({}, ("MODEL.MODALITIES", "[RGB,TI]"), "MODEL.MODALITIES is ['RGB', 'TI']"),
    "another normalisation": ({}, ("INPUT.PIXEL_STD", "[1,1,1]"), "trained with [0.5, 0.5, 0.5]"),
    "no head in common": (
        {},
        ("MODEL.DIRECT", "0", "MODEL.HDM", "False", "MODEL.ATM", "False"),
        "none",
    ),
    "weights alone": ({"config": None}, (), "holds no configuration"),
    "weights that are not finite": ({"model": torch.nan}, (), "not finite"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_teacher_that_does_not_fit(tiny_root, dense, tmp_path, refusal, what):
    more, words, reason = REFUSED[what]
    path, content = tmp_path / "teacher.pth", torch.load(dense, weights_only=True)
    if "model" in more:
        content["model"]["heads.moe.bottleneck.weight"][0] = torch.nan
        more = {}
    torch.save(content | more, path)
    words = (*cli_args_for(tiny_root, *DENSE), "--teacher", path, "OUTPUT_DIR", "run", *words)
    message = refusal(train_net.main, *words)
    assert reason in message and str(path) in message and message.count("\n") == 0


def test_a_start_from_the_same_identities_keeps_the_classifiers(cfg, dense):
    """Heads that it lacks are new."""
    start = torch.load(dense, weights_only=True)["model"]
    task = prepared(with_values(cfg, {"TEST.WEIGHT": str(dense)}))
    state = task.model.state_dict()
    assert equal(start, state)
    (note,) = (text for text in task.notes if str(dense) in text)
    anew = note.partition("new ones: ")[2].split(", ")
    assert set(anew) == state.keys() - start.keys() and "heads.sdtps.classifier.weight" in anew


def test_the_classes_are_the_images_and_whose_they_are(tiny_root, cfg):
    samples = read_splits(cfg, ("train",))["train"]
    known = class_digest(cfg, samples)
    swapped = [
        replace(one, identity={1: 2, 2: 1}.get(one.identity, one.identity)) for one in samples
    ]
    others = [samples[1:], swapped, [replace(one, camera=one.camera + 1) for one in samples]]
    assert known not in [class_digest(cfg, other) for other in others]
    renumbered = [replace(one, identity=one.identity + 7) for one in samples]
    assert class_digest(cfg, renumbered) == known


@pytest.mark.slow
def test_a_teacher_that_teaches_nothing_is_told(tiny_root, dense, tmp_path, caplog):
    """Once; not where the features are followed."""
    run = [*cli_args_for(tiny_root, *DENSE, "SOLVER.DISTILL_WEIGHT", "0.001"), "--teacher", dense]
    for weight in ("0", "10"):
        assert call([*run, "SOLVER.DISTILL_FEATURES", weight, "OUTPUT_DIR", tmp_path / weight]) == 0
        assert caplog.text.count("it teaches hardly anything") == 1
