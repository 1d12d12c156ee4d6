"""Commands without --config_file: the configuration is the one that the checkpoint holds."""
import shutil

import pytest
import seps_tiny
import torch
from commands import BASELINE, CONFIG, ONE_LINE, cli_args_for, table_of

from demo_sdtps import test_net
from demo_sdtps.config import load_cfg
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.checkpoint import save_checkpoint
from demo_sdtps.seps.model import make_seps
from demo_sdtps.tools import convert_checkpoint, draw_ranks, draw_tokens, export_features, report


@pytest.fixture(scope="module")
def checkpoint(tiny_root, tmp_path_factory):
    """Of untrained weights, as training writes it; the weights that its own configuration names are not there → its path."""
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, "TEST.WEIGHT", "nowhere.pth")[2:])
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("stored") / "best.pth"
    save_checkpoint(path, cfg, make_model(cfg, 6, 4), epoch=1, state={"num_class": 6, "camera_num": 4})
    return path


@pytest.fixture(scope="module")
def seps_checkpoint(shapes_root, tmp_path_factory):
    cfg = seps_tiny.cfg_for(shapes_root)
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("stored_seps") / "best.pth"
    save_checkpoint(path, cfg, make_seps(cfg, pretrained=False)[0], epoch=1)
    return path


@pytest.fixture
def fails(command):
    """Call a command that must end with one sentence: → it."""
    def call(main, *words):
        code, stdout, stderr = command(main, *words)
        assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1, stderr
        return stderr.removeprefix(ONE_LINE).rstrip("\n")

    return call


def changed(checkpoint, path, **values):
    """A copy of a checkpoint with other content."""
    torch.save(torch.load(checkpoint, weights_only=True) | values, path)
    return path


@pytest.mark.parametrize("words", [("--weight", "{}"), ("TEST.WEIGHT", "{}"), ("TEST.WEIGHT={}",)], ids=" ".join)
def test_the_same_numbers_as_with_the_file(command, checkpoint, tiny_root, words):
    with_file = command(test_net.main, *cli_args_for(tiny_root, "--weight", checkpoint))
    without = command(test_net.main, *(word.format(checkpoint) for word in words))
    assert without[:2] == with_file[:2] and without[0] == 0 and list(table_of(without[1])) == ["1", "2", "3"]


def test_key_value_wins_over_the_checkpoint(command, checkpoint, tiny_root):
    options = ("TEST.MISS", "rn", "TEST.FEAT_NORM", "no")
    with_file = command(test_net.main, *cli_args_for(tiny_root, "--weight", checkpoint, *options))
    without = command(test_net.main, "--weight", checkpoint, "TEST.MISS", "rn", "TEST.FEAT_NORM=no")
    assert without[:2] == with_file[:2] and "without RGB and NI, features not normalised" in without[1]


def test_the_file_wins_over_the_checkpoint(fails, checkpoint, tiny_root):
    said = fails(test_net.main, *cli_args_for(tiny_root, "--weight", checkpoint, config=BASELINE))
    assert "is not part of the model" in said and "sdtps" in said  # which the baseline has not


def test_key_value_wins_over_the_file(command, checkpoint, tiny_root):
    code, stdout, _ = command(test_net.main, *cli_args_for(tiny_root, "--weight", checkpoint, "TEST.RE_RANKING=yes"))
    assert code == 0 and "re-ranked" in stdout


def test_every_tool_reads_it(command, checkpoint, tmp_path):
    for main, name, words in ((export_features.main, "x.npz", ()), (draw_ranks.main, "r.png", ("--queries", "1")),
                              (draw_tokens.main, "t.png", ("--samples", "1"))):
        code, stdout, stderr = command(main, "--weight", checkpoint, "--output", tmp_path / name, *words)
        assert code == 0 and str(tmp_path / name) in stdout, stderr


@pytest.mark.slow
def test_a_report_reads_it_from_the_run_wherever_that_has_gone(command, checkpoint, tmp_path, tiny_root):
    """By --run; with a file, OUTPUT_DIR says it as well."""
    run = tmp_path / "moved"
    run.mkdir()
    shutil.copy(checkpoint, run / "last.pth")
    patterns = {str(number): {"mAP": 0.5, "Rank-1": 0.5, "Rank-5": 0.5, "Rank-10": 0.5} for number in (1, 2, 3)}
    (run / "metrics.json").write_text(f'[{{"epoch": 1, "patterns": {patterns}}}]'.replace("'", '"'))
    printed = set()
    for words in (["--run", run], cli_args_for(tiny_root, f"OUTPUT_DIR={run}")):
        code, stdout, stderr = command(report.main, "--overwrite", *words)
        assert code == 0, stderr
        printed.add(stdout)
    assert len(printed) == 1 and f"{run}/last.pth" in stdout
    assert {path.name for path in run.iterdir()} == {"last.pth", "metrics.json", "curves.png", "ranks.png", "tokens.png"}


def test_a_report_without_a_run_is_reported(fails, tmp_path):
    assert fails(report.main).startswith("There is no configuration: give --run the OUTPUT_DIR of a training")
    for words in (["--run", tmp_path], ["OUTPUT_DIR", tmp_path]):
        assert fails(report.main, *words).startswith(f"The run {tmp_path} has no metrics.json")


def test_seps_reads_it(command, seps_checkpoint, shapes_root):
    with_file = command(seps_tiny.test_seps.main, *seps_tiny.cli_args_for(shapes_root, "--weight", seps_checkpoint))
    without = command(seps_tiny.test_seps.main, "--weight", seps_checkpoint)
    assert without[:2] == with_file[:2] and without[0] == 0 and "rSum" in without[1]


def test_checkpoints_of_the_other_kind_are_reported(fails, checkpoint, seps_checkpoint):
    said = fails(test_net.main, "--weight", seps_checkpoint)
    assert said.startswith("Unknown key ") and f"the checkpoint {seps_checkpoint}" in said
    assert "belongs to another command or version" in said
    said = fails(seps_tiny.test_seps.main, "--weight", checkpoint)
    assert said.startswith("Unknown key ") and f"the checkpoint {checkpoint}" in said
    assert "belongs to another command or version" in said


def test_neither_file_nor_weights_is_reported(fails):
    assert fails(test_net.main) == ("There is no configuration: give --weight a checkpoint, which contains one, or "
                                    "--config_file a YAML file such as configs/RGBNT201/DeMo_SDTPS.yml.")
    assert "configs/SEPS/flickr30k.yml" in fails(seps_tiny.test_seps.main, "TEST.WEIGHT", "")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("name", ["ours", "demo"])
def test_weights_without_a_configuration_need_the_file(command, fails, checkpoint, tiny_root, tmp_path, name, zipped):
    weights = tmp_path / f"{name}.pth"
    if name == "demo":
        assert command(convert_checkpoint.main, checkpoint, weights, "--to", "demo")[0] == 0
        state = torch.load(weights, weights_only=True)
    else:
        state = torch.load(checkpoint, weights_only=True)["model"]
    torch.save(state, weights, _use_new_zipfile_serialization=zipped)
    assert fails(test_net.main, "--weight", weights).startswith(f"The weights {weights} hold no configuration (bare ")
    assert "give --config_file the one that they were trained with" in fails(test_net.main, "--weight", weights)
    assert command(test_net.main, *cli_args_for(tiny_root, "--weight", weights))[0] == 0


def test_weights_that_cannot_be_read_are_reported(fails, tmp_path):
    missing = tmp_path / "none.pth"
    assert fails(test_net.main, "--weight", missing).startswith(f"The weights {missing} do not exist; give a checkpoint")
    assert "are a folder" in fails(test_net.main, "--weight", tmp_path)
    (tmp_path / "text.pth").write_text("no weights")
    assert "cannot be read as a torch checkpoint" in fails(test_net.main, "--weight", tmp_path / "text.pth")


@pytest.mark.parametrize(("config", "said"), [
    ("", "hold no configuration"), ("MODEL: [", "is not valid YAML"), ("SOLVER: {SEED: nine}", "SOLVER.SEED in the checkpoint"),
    ("SOLVER: {NOTHING: 1}", "Unknown key 'SOLVER.NOTHING'")])
def test_a_configuration_that_cannot_be_used_is_reported_with_its_checkpoint(fails, checkpoint, tmp_path, config, said):
    path = changed(checkpoint, tmp_path / "damaged.pth", config=config)
    sentence = fails(test_net.main, "--weight", path)
    assert said in sentence and str(path) in sentence


def test_data_that_have_moved_are_reported_and_given(command, fails, checkpoint, tiny_root, tmp_path):
    text = torch.load(checkpoint, weights_only=True)["config"].replace(str(tiny_root), "/elsewhere")
    path = changed(checkpoint, tmp_path / "moved.pth", config=text)
    assert "The data set RGBNT201 is not at /elsewhere/RGBNT201" in fails(test_net.main, "--weight", path)
    assert command(test_net.main, "--weight", path, "DATASETS.ROOT_DIR", tiny_root)[0] == 0
