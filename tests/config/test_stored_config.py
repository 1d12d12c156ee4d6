"""Commands without --config_file: the configuration is the one that the checkpoint holds."""

import pytest
import seps_tiny
import torch
from commands import CONFIG, checkpoint_file, cli_args_for, parse_table

from demo_sdtps.commands import convert_checkpoint
from demo_sdtps.commands import test as test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from seps import __main__ as seps
from seps.model import make_seps

pytestmark = pytest.mark.usefixtures("shallow")


@pytest.fixture(scope="module")
def checkpoint(tiny_root, tmp_path_factory):
    """Of untrained weights, as training writes it; the weights that its own configuration names are not there → its path."""
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, "TEST.WEIGHT", "nowhere.pth")[2:])
    return checkpoint_file(tmp_path_factory.mktemp("stored") / "best.pth", cfg)


@pytest.fixture(scope="module")
def seps_checkpoint(shapes_root, tmp_path_factory):
    cfg = seps_tiny.cfg_for(shapes_root)
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("stored_seps") / "best.pth"
    save_checkpoint(path, cfg, make_seps(cfg, pretrained=False)[0], epoch=1)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("--weight", "{}"),
        ("TEST.WEIGHT={}",),
        pytest.param(("TEST.WEIGHT", "{}"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_the_same_numbers_as_with_the_file(command, checkpoint, tiny_root, words):
    """KEY VALUE wins over either."""
    options = ("TEST.MISS", "rn", "TEST.FEAT_NORM=no")
    with_file = command(test_net.main, *cli_args_for(tiny_root, "--weight", checkpoint, *options))
    without = command(test_net.main, *(word.format(checkpoint) for word in words), *options)
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


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_weights_without_a_configuration_need_the_file(
    command, refusal, checkpoint, tiny_root, tmp_path, zipped
):
    weights = tmp_path / "demo.pth"
    assert command(convert_checkpoint.main, checkpoint, weights, "--to", "demo")[0] == 0
    torch.save(
        torch.load(weights, weights_only=True), weights, _use_new_zipfile_serialization=zipped
    )
    message = refusal(test_net.main, "--weight", weights)
    assert "hold no configuration" in message and "give --config_file the one" in message
    assert command(test_net.main, *cli_args_for(tiny_root, "--weight", weights))[0] == 0


def test_data_that_have_moved_are_reported_and_given(
    command, refusal, checkpoint, tiny_root, tmp_path
):
    content, path = torch.load(checkpoint, weights_only=True), tmp_path / "moved.pth"
    torch.save(content | {"config": content["config"].replace(str(tiny_root), "/elsewhere")}, path)
    assert "The data set Synthetic is not at /elsewhere/synthetic/RGBNT201" in refusal(
        test_net.main, "--weight", path
    )
    assert command(test_net.main, "--weight", path, "DATASETS.ROOT_DIR", tiny_root)[0] == 0
