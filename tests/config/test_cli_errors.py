"""The configuration that a checkpoint holds, and a user's mistakes at the commands: one sentence, exit code 2, nothing left
behind. Mistakes in configurations are in test_config.py. Each reader and module has tests of what it refuses."""

import os

import numpy as np
import pytest
import seps_tiny
import torch
from commands import BASELINE, CONFIG, checkpoint_file, cli_args_for, parse_table, weights_file
from processes import run

from demo_sdtps.commands import convert_checkpoint, export
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from seps import __main__ as seps
from seps.model import make_seps

pytestmark = pytest.mark.usefixtures("shallow")


@pytest.fixture
def weights(own_root, tmp_path):
    """Of the tiny model, as they are made."""
    return weights_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(own_root)[2:]))


def image(root):
    return sorted((root / "RGBNT201" / "test" / "NI").iterdir())[5]


def empty_image(root, weights):
    image(root).write_bytes(b"")


def no_image(root, weights):
    image(root).unlink()


def one_camera(root, weights):
    for path in (root / "RGBNT201" / "test").glob("*/*"):
        if "_cam1_" not in path.name:
            path.unlink()


def cut_short(root, weights):
    os.truncate(weights, weights.stat().st_size // 2)


def not_finite(root, weights):
    content = torch.load(weights, weights_only=True)
    content["model"]["backbone.vit.norm.weight"].fill_(torch.nan)
    torch.save(content, weights)


def nothing(root, weights):
    """The words are the mistake."""


FILE = ("--weight", "w.pth")
TRAIN = ("OUTPUT_DIR", "run")
EXPORT = (*FILE, "--output", "x.npz")
NOWHERE = (*TRAIN, "DATASETS.ROOT_DIR", "none")
NO_GPU = (*TRAIN, "MODEL.DEVICE", "cuda:99")
EXAMPLES = {
    "an image that is missing": (train_net, no_image, TRAIN, "has no NI image"),
    "a damaged image, on the way": (export.features, empty_image, EXPORT, "cannot be read"),
    "a missing folder": (train_net, nothing, NOWHERE, "is not at none"),
    "a GPU that is not there": (train_net, nothing, NO_GPU, "The GPU cuda:99"),
    "an output that is a file": (train_net, nothing, ("OUTPUT_DIR", "w.pth"), "w.pth"),
    "no match for any query": (test_net, one_camera, FILE, "has a match in the gallery"),
    "weights that are not there": (test_net, nothing, ("--weight", "none.pth"), "do not exist"),
    "weights that end early": (test_net, cut_short, FILE, "cannot be read"),
    "weights that are not finite": (test_net, not_finite, FILE, "not finite"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_mistake_is_one_sentence(refusal, own_root, weights, name):
    tool, make, words, message = EXAMPLES[name]
    make(own_root, weights)
    assert message in refusal(getattr(tool, "main", tool), *cli_args_for(own_root), *words)


@pytest.mark.slow
@pytest.mark.soak
def test_a_damaged_image_that_a_loading_process_meets(own_root, tmp_path):
    empty_image(own_root, None)
    loading = ("DATASETS.CACHE", "no", "DATALOADER.NUM_WORKERS", "2")
    words = cli_args_for(own_root, *loading, "OUTPUT_DIR", tmp_path / "run")
    done = run("train_net.py", *words)
    last = done.stderr.replace("\r", "\n").strip().splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert last.startswith("error: The image ") and "cannot be read" in last


def test_weights_of_another_configuration_are_told_by_their_tensors(refusal, own_root, weights):
    message = refusal(test_net.main, *cli_args_for(own_root, *FILE, config=BASELINE))
    assert "do not fit" in message and "sdtps" in message and "and 36 more" in message
    assert message.count("is not part of the model") == 3
    weights_file(weights, load_cfg(BASELINE, cli_args_for(own_root)[2:]))
    message = refusal(test_net.main, *cli_args_for(own_root, *FILE))
    assert message.count("is missing") == 3 and "sdtps." in message


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (seps.train, ["DATASETS.NAMES", "f30k"], "f30k/train_caps.txt is missing"),
        (seps.test, FILE, "do not fit the configuration"),
    ],
    ids=["data", "weights of train_net.py"],
)
def test_a_mistake_with_seps_is_one_sentence(refusal, shapes_root, weights, main, words, message):
    assert message in refusal(main, *seps_tiny.cli_args_for(shapes_root, *TRAIN, *words))


@pytest.mark.parametrize("allocate", [np.empty, torch.empty], ids=["numpy", "torch"])
def test_a_lack_of_memory_is_one_sentence(refusal, allocate):
    assert refusal(lambda: allocate(1 << 50)).startswith("There is not enough memory for this;")


# The configuration of a checkpoint


@pytest.fixture(scope="module")
def checkpoint(tiny_root, tmp_path_factory):
    """Of untrained weights, as training writes it; the weights that its own configuration names are not there → its path."""
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, "TEST.WEIGHT", "nowhere.pth")[2:])
    return checkpoint_file(tmp_path_factory.mktemp("stored") / "best.pth", cfg)


@pytest.fixture(scope="module")
def seps_checkpoint(shapes_root, tmp_path_factory):
    cfg = seps_tiny.cfg_for(shapes_root)
    path = tmp_path_factory.mktemp("stored_seps") / "best.pth"
    save_checkpoint(path, cfg, make_seps(cfg, pretrained=False)[0], epoch=1)
    return path


def test_the_same_numbers_as_with_the_file(command, checkpoint, tiny_root):
    """KEY VALUE wins over either."""
    options = ("TEST.MISS", "rn", "TEST.FEAT_NORM=no")
    with_file = command(test_net.main, *cli_args_for(tiny_root, "--weight", checkpoint, *options))
    without = command(test_net.main, f"TEST.WEIGHT={checkpoint}", *options)
    assert without[:2] == with_file[:2] and list(parse_table(without[1])) == ["1", "2", "3"]
    assert "without RGB and NI, features not normalised" in without[1]


def test_seps_reads_it(command, seps_checkpoint, shapes_root):
    with_file = command(
        seps.test, *seps_tiny.cli_args_for(shapes_root, "--weight", seps_checkpoint)
    )
    without = command(seps.test, "--weight", seps_checkpoint)
    assert without[:2] == with_file[:2] and without[0] == 0 and "rSum" in without[1]


def test_checkpoints_of_the_other_kind_are_reported(refusal, checkpoint, seps_checkpoint):
    for main, weights in ((test_net.main, seps_checkpoint), (seps.test, checkpoint)):
        message = refusal(main, "--weight", weights)
        assert message.startswith("Unknown key ") and str(weights) in message


def test_weights_without_a_configuration_need_the_file(
    command, refusal, checkpoint, tiny_root, tmp_path
):
    """Also as torch before 1.6 wrote them."""
    weights = tmp_path / "demo.pth"
    assert command(convert_checkpoint.main, checkpoint, weights, "--to", "demo")[0] == 0
    content = torch.load(weights, weights_only=True)
    torch.save(content, weights, _use_new_zipfile_serialization=False)
    assert "--config_file" in refusal(test_net.main, "--weight", weights)
    assert command(test_net.main, *cli_args_for(tiny_root, "--weight", weights))[0] == 0
