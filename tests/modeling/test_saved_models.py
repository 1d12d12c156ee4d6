"""Every name of a model's weights gives the same model: file, run, save_pretrained, safetensors, the hub (here: its cache)."""

import json
import re
import shlex
import shutil

import huggingface_hub
import numpy as np
import pytest
from commands import CONFIG, ONE_LINE, SMALL, cli_args_for, load_records, parse_table

import demo_sdtps
from demo_sdtps.commands import convert_checkpoint
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.cli import run as run_command
from demo_sdtps.evaluation.tables import MEASURES

pytestmark = pytest.mark.usefixtures("shallow")

SLIM = shlex.split(
    "MODEL.SLIM_BLOCKS '[1]' MODEL.SLIM_KEEP '[0.5]' MODEL.SLIM_SCORE self_supervised "
    "INPUT.JOINT_AUGMENTATION True MODEL.HDM True"
)
NAME = "owner/name"


@pytest.fixture(scope="module")
def places(tiny_root, tmp_path_factory):
    """A folder with a run, `saved`, what save_pretrained makes of it, and `cache`, the hub's with `saved` as a repository."""
    folder = tmp_path_factory.mktemp("places")
    run = ("SOLVER.MAX_EPOCHS", 1, "OUTPUT_DIR", folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train_net.py", *cli_args_for(tiny_root, *SLIM, *run)])
        run_command(train_net.main)
    demo_sdtps.load(folder / "run", "MODEL.DEVICE", "cpu").save_pretrained(folder / "saved")
    repository, commit = folder / "cache" / f"models--{NAME.replace('/', '--')}", "1" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(folder / "saved", repository / "snapshots" / commit)
    return folder


@pytest.fixture
def names(places, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(places / "cache"))
    files = ("run/last.pth", "run", "saved", "saved/model.safetensors")
    return [*(places / file for file in files), NAME]


def test_load_takes_every_name(names, places, files, command):
    expected, *others = [demo_sdtps.load(name, "MODEL.DEVICE", "cpu") for name in names]
    others.append(demo_sdtps.Extractor.from_pretrained(places / "saved"))
    words = (names[-2], places / "demo.pth", "--to", "demo", "--overwrite")
    assert command(convert_checkpoint.main, *words)[0] == 0
    others.append(demo_sdtps.load(places / "demo.pth", *SMALL, *SLIM, config_file=CONFIG))
    for other in others:
        assert np.array_equal(other(**files), expected.features(**files))
        assert other.model.num_class == expected.model.num_class
        assert other.cameras == expected.cameras == 4


def test_a_model_without_embeddings_of_cameras_keeps_their_number(tmp_path):
    cfg = load_cfg(CONFIG, [*SMALL, "MODEL.SIE_CAMERA", "False", "MODEL.DEVICE", "cpu"])
    demo_sdtps.Extractor(cfg.dump(), 5, 3).save_pretrained(tmp_path)
    again = demo_sdtps.load(tmp_path)
    assert (again.model.num_class, again.model.camera_num, again.cameras) == (5, 3, 0)


def test_the_commands_take_every_name(names, places, tiny_root, command):
    expected, *others = [
        command(test_net.main, "--weight", name, "DATASETS.ROOT_DIR", tiny_root) for name in names
    ]
    others.append(command(test_net.main, *cli_args_for(tiny_root, *SLIM, "--weight", names[2])))
    assert expected[0] == 0 and list(parse_table(expected[1])) == ["1", "2", "3"]
    for code, stdout, stderr in others:
        assert code == 0 and parse_table(stdout) == parse_table(expected[1]), stderr
        assert "WARNING" not in stderr


def test_another_data_set_is_refused_of_a_saved_model_too(places, tiny_root, command):
    words = ("--weight", places / "saved", "DATASETS.NAMES", "MSVR310")
    code, _, stderr = command(test_net.main, *words)
    assert code == 2 and "were trained on Synthetic, but the configuration is for MSVR310" in stderr


@pytest.mark.parametrize(
    "name, phrases",
    [
        ("owner/none", ("no file or folder here", "Hugging Face hub", "check the network")),
        ("runs/none.pth", ("runs/none.pth do not exist",)),
        (".", ("do not exist (no last.pth", "model.safetensors in this")),
    ],
)
def test_what_is_no_model_is_told(names, tmp_path, monkeypatch, command, name, phrases):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        demo_sdtps.load(name)
    code, stdout, stderr = command(test_net.main, "--weight", name)
    assert code == 2 and not stdout and stderr.count("\n") == 1
    assert stderr == f"{ONE_LINE}{error.value}\n"
    assert all(phrase in stderr for phrase in phrases), stderr


def test_the_card_tells_where_the_model_comes_from(places, tiny_root, tmp_path):
    card = (places / "saved" / "README.md").read_text()
    assert 'reid.features(rgb="rgb.jpg", ni="ni.jpg", ti="ti.jpg")' in card
    (record,) = (record for record in load_records(places / "run") if record["epoch"] == 1)
    for row in record["patterns"].values():
        assert re.search(r" +".join(rf"{100 * row[name]:.1f}" for name in MEASURES), card)
    commit = json.loads((places / "run" / "run.json").read_text())["commit"] or "Synthetic"
    phrases = ("DATASETS.NAMES Synthetic", "MODEL.SLIM_SCORE: self_supervised", 'load("FOLDER")')
    assert all(phrase in card for phrase in (commit, *phrases))
    assert str(tiny_root) not in card and str(places) not in card
    demo_sdtps.load(places / "saved", "MODEL.DEVICE", "cpu").save_pretrained(tmp_path)  # handed on
    assert (tmp_path / "README.md").read_text() == card
    shutil.copy(places / "run" / "last.pth", tmp_path / "alone.pth")
    demo_sdtps.load(tmp_path / "alone.pth").save_pretrained(tmp_path / "again")
    assert "in percent" not in (tmp_path / "again" / "README.md").read_text()
