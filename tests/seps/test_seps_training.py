"""SEPS from start to end: its commands on the tiny shapes, what they leave, and recall against a plain sort."""

import json

import pytest
import torch
from commands import load_records
from numeric import assert_close, generator, tolerance
from seps_tiny import CAPTIONS, PATH, SEED, SIZES, cfg_for, train
from tiny import margins

from demo_sdtps.config import load_cfg
from seps import __main__ as seps
from seps.model import make_seps
from seps.schema import SEPS_SCHEMA
from seps.training import (
    BatchLoss,
    evaluate_retrieval,
    five_fold,
    load_seps_and_data,
    retrieval,
    similarities,
)
from tests.reference import retrieval as reference

FILES = {"config.yml", "metrics.json", "run.json", "last.pth", "best.pth", "log.txt"}


@pytest.fixture(scope="module")
def run_folder(shapes_root, tmp_path_factory):
    """A run of three epochs → its folder."""
    return train(shapes_root, tmp_path_factory.mktemp("seps") / "run")


def load_checkpoint(folder, name="last.pth"):
    return torch.load(folder / name, weights_only=True)


# A run


def test_a_run_leaves_its_files(run_folder, shapes_root):
    left = {path.name for path in run_folder.iterdir()}
    assert {name for name in left if not name.startswith("events.out.tfevents.")} == FILES
    cfg = load_cfg(run_folder / "config.yml", (), SEPS_SCHEMA)
    assert cfg == cfg_for(shapes_root, "OUTPUT_DIR", run_folder)
    run = json.loads((run_folder / "run.json").read_text())
    assert run["status"] == "finished" and run["seed"] == SEED and run["versions"]["transformers"]
    log = (run_folder / "log.txt").read_text()
    assert "random weights" in log and "with long captions" in log


def test_records_hold_losses_rates_and_recalls(run_folder):
    records = load_records(run_folder)
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["lr"] for record in records] == pytest.approx([0.0005, 0.00015, 0.000045])
    for record in records:
        # means of three steps
        assert_close(record["loss"], record["align"] + 2 * record["ratio"], 2, 3, 3)
        recalls = record["dev"]
        assert (
            list(recalls) == [*NAMES, "rSum"]
            and 0 <= min(recalls.values()) <= recalls["rSum"] <= 600
        )
        assert ("test" in record) == (record["epoch"] == 3)
    assert list(records[-1]["test"]) == [*NAMES, "rSum"]
    # sums over up to 7 negatives of each of 8 images and captions, then over the hardest
    assert records[0]["align"] > 1.5 * records[1]["align"]


def test_the_last_and_the_best_checkpoint(run_folder, shapes_root):
    scores = {record["epoch"]: record["dev"]["rSum"] for record in load_records(run_folder)}
    assert load_checkpoint(run_folder, "best.pth")["epoch"] == max(scores, key=scores.get)
    last = load_checkpoint(run_folder)
    assert last["epoch"] == 3 and last["dataset"] == "shapes" and last["optimizers"][0]["state"]
    assert last["config"] == (run_folder / "config.yml").read_text()
    make_seps(cfg_for(shapes_root))[0].load_state_dict(last["model"])


def test_the_loss_is_configured():
    words = "SOLVER.MARGIN 0.3 SOLVER.RATIO_WEIGHT 5 SOLVER.TARGET_RATIO 0.25 SOLVER.LAMBDA_SPARSE 2 SOLVER.LAMBDA_DENSE 3"
    losses = BatchLoss(load_cfg(None, words.split(), SEPS_SCHEMA), None).losses
    actual = losses(torch.zeros(2, 2), (torch.ones(2), torch.full((2,), 0.5)))
    align, ratio = 4 * 0.3, 2 * 0.75**2 + 3 * 0.25**2
    assert_close(torch.stack(actual), [align + 5 * ratio, align, ratio], 2, 4, 2)


@pytest.mark.parametrize(
    "opts",
    [
        ("DATASETS.LONG_CAPTIONS", "no"),
        pytest.param(("MODEL.PAPER_VERSION", "False"), marks=pytest.mark.slow),
        pytest.param(("SOLVER.AMP", "bf16"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_runs_of_other_models_captions_and_precisions(shapes_root, tmp_path, opts):
    output = train(shapes_root, tmp_path / "run", "SOLVER.MAX_EPOCHS", "1", *opts)
    assert load_records(output)[0]["loss"] > 0 and "test" in load_records(output)[0]


# Evaluation


@pytest.mark.parametrize("split", ["test", "dev"])
def test_the_test_command_gives_the_recorded_table(run_folder, success, tmp_path, split):
    words = ("--config_file", run_folder / "config.yml", "--weight", run_folder / "last.pth")
    words = (*words, "--json", tmp_path / "x.json", "TEST.SPLIT", split)
    stdout = success(seps.test, *words)
    content = json.loads((tmp_path / "x.json").read_text())
    assert content[split] == pytest.approx(load_records(run_folder)[-1][split])
    assert list(content) == ["caption", split]
    lines = stdout.splitlines()
    assert lines[0] == content["caption"]
    assert f"{SIZES[split]} images, {CAPTIONS * SIZES[split]} captions" in lines[0]
    assert lines[2].split() == [
        split,
        *(f"{content[split][column]:.1f}" for column in [*NAMES, "rSum"]),
    ]


def test_folds_are_searched_each_for_itself(run_folder, shapes_root):
    opts = ("TEST.WEIGHT", run_folder / "last.pth", "TEST.FOLDS", "2")
    model, data = load_seps_and_data(cfg_for(shapes_root, *opts))
    pairs, image_of = similarities(model, data), torch.arange(16) // 2
    assert evaluate_retrieval(model, data) == five_fold(pairs, image_of, 2)


def test_evaluation_compares_every_pair_as_training_does(run_folder, shapes_root):
    """Each image with each caption alone, without blocks and padding of others."""
    model, data = load_seps_and_data(cfg_for(shapes_root, "TEST.WEIGHT", run_folder / "last.pth"))
    with margins() as gaps:
        actual = similarities(model, data)
    images = [image for (images,), *_ in data.loader for image in images]
    assert not model.training
    alone = actual.clone()
    with torch.no_grad():
        for image, caption in ((0, 0), (3, 11), (7, 2)):
            long = data.split.long_captions[data.split.image_of[caption]]
            words = torch.tensor([data.split.captions[caption]])
            lengths = torch.tensor([words.shape[1]]), torch.tensor([len(long)])
            texts = words, lengths[0], torch.tensor([long]), lengths[1]
            alone[image, caption] = model(images[image][None], *texts)
    # but for as many pairs as have patches whose choice is not clear
    allowed = tolerance(*PATH, *PATH)
    differ = (alone.double() - actual.double()).abs() > allowed * float(actual.abs().max())
    assert differ.sum() <= sum(gap <= allowed for gap in gaps)


# Recall

NAMES = [f"{way} R@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
COUNTS = {
    "one": [1] * 30,
    "five": [5] * 20,
    "unequal": [1, 7, 2, 1, 3, 12, 1, 4, 1, 1, 2, 6, 1, 3, 1, 1, 5, 2, 1, 1],
    "one image": [4],
}


def draw(seed, counts, levels=None, shuffle=True, lift=0.8):
    """Similarities, those of matches raised a little, and the captions' images; of few `levels` there are many ties."""
    draws = generator(seed)
    image_of = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    if shuffle:
        image_of = image_of[torch.randperm(len(image_of), generator=draws)]
    similarity = torch.randn(len(counts), len(image_of), generator=draws)
    similarity[image_of, torch.arange(len(image_of))] += lift
    return (similarity * levels).round() / levels if levels else similarity, image_of


def assert_same(actual, expected):
    assert list(actual) == [*NAMES, "rSum"]
    assert actual == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("levels", [None, 2, 1], ids=["no ties", "ties", "mostly ties"])
@pytest.mark.parametrize("counts", COUNTS)
def test_against_a_sort(counts, levels):
    similarity, image_of = draw(0, COUNTS[counts], levels)
    actual = retrieval(similarity, image_of)
    assert_same(actual, reference.retrieval(similarity.tolist(), image_of.tolist()))
    assert actual["rSum"] == pytest.approx(sum(actual[name] for name in NAMES))
    if counts != "one image" and levels is None:
        assert all(
            actual[f"{way} R@1"] < 100 and actual[f"{way} R@10"] > 0 for way in ("i2t", "t2i")
        )


@pytest.mark.parametrize(("counts", "folds"), [("five", 5), ("unequal", 4), ("one", 30)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_folds(counts, folds, shuffle):
    similarity, image_of = draw(9, COUNTS[counts], shuffle=shuffle)
    actual = five_fold(similarity, image_of, folds)
    assert_same(actual, reference.five_fold(similarity.tolist(), image_of.tolist(), folds))
    assert actual["rSum"] == pytest.approx(sum(actual[name] for name in NAMES))
