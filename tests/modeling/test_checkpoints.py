"""Weights in files: DeMo's names and ours, damaged files, and every name by which a trained model is loaded."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest
import torch
from commands import CONFIG, SMALL, cli_args_for, load_records, parse_table
from tiny import tiny_model

import demo_sdtps
from demo_sdtps.commands import convert_checkpoint
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.commands.cli import run as run_command
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.evaluation.tables import MEASURES
from demo_sdtps.modeling.checkpoints.loading import load_weights, read_checkpoint
from demo_sdtps.modeling.checkpoints.names import from_demo, load_file, to_demo
from tests.reference.fusion import Fusion

pytestmark = pytest.mark.usefixtures("shallow")

FUSION = ("MODEL.HDM", True, "MODEL.ATM", True, "MODEL.HEAD", 4)
SLIM = shlex.split(
    "MODEL.SLIM_BLOCKS '[1]' MODEL.SLIM_KEEP '[0.5]' MODEL.SLIM_SCORE learned:Learned "
    "INPUT.JOINT_AUGMENTATION True MODEL.HDM True"
)


def assert_same(actual, expected):
    """The same names, the same tensors bit by bit."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(actual[name], tensor), name


def random_fusion(width=64, heads=4, dtype=torch.float32, seed=2):
    """DeMo's HDM and ATMoE (without heads: HDM alone) between what stands around them in its checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    weights = {"BACKBONE.base.norm.weight": torch.ones(3)}
    for name, tensor in Fusion(width, heads).state_dict().items():
        weights[f"generalFusion.{name}"] = (
            torch.tensor(1234567)
            if name.endswith("tracked")
            else torch.randn(tensor.shape, generator=generator).to(dtype)
        )
    return weights | {"classifier_moe.weight": torch.zeros(2, 7)}


@pytest.mark.parametrize(
    ("width", "heads", "dtype"),
    [(64, 4, torch.float32), (192, 12, torch.float16), (128, None, torch.float32)],
)
def test_demos_fusion_and_back(width, heads, dtype):
    """The places of the stacks are those of tests/modeling/test_fusion.py, which computes with them."""
    theirs = random_fusion(width, heads, dtype)
    ours = from_demo(theirs)
    back = to_demo(ours)
    assert_same(back, theirs)
    for name, tensor in back.items():  # a view would be saved with the whole stack
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), name


def test_a_fusion_that_is_not_whole_is_reported(tmp_path):
    theirs = to_demo(tiny_model(*FUSION).state_dict())
    del theirs["generalFusion.moe.experts.2.expertHead.5.mlp.0.weight"]
    torch.save(theirs, tmp_path / "broken.pth")
    with pytest.raises(UserError, match=r"broken.pth do not fit .*hdm.query is missing"):
        load_weights(tiny_model(*FUSION), read_checkpoint(tmp_path / "broken.pth"))


def test_a_file_that_is_cut_short_anywhere_is_told_so(tmp_path):
    path = tmp_path / "cut.pth"
    torch.save({"model": tiny_model().state_dict()}, path)
    content = path.read_bytes()
    for size in range(0, len(content) - 1, len(content) // 40):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="damaged"):
            load_file(path)


def test_a_checkpoint_of_the_first_release_is_read(tmp_path):
    """Whose backbone was called trunk."""
    weights = tiny_model("MODEL.USE_SDTPS", True).state_dict()
    former = {re.sub("^backbone", "trunk", name): tensor for name, tensor in weights.items()}
    torch.save({"model": former}, tmp_path / "last.pth")
    assert (
        former != weights and read_checkpoint(tmp_path / "last.pth").model.keys() == weights.keys()
    )


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_flipped_bit_of_a_checkpoint_is_refused(share, tmp_path):
    """torch itself reads other weights."""
    path = tmp_path / "flipped.pth"
    torch.save({"model": {"weight": torch.ones(4000)}}, path)
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        load_file(path)


@pytest.fixture(scope="module")
def places(tiny_root, tmp_path_factory):
    """A folder with a run, and `saved`, what save_pretrained makes of it."""
    folder = tmp_path_factory.mktemp("places")
    run = ("SOLVER.MAX_EPOCHS", 1, "OUTPUT_DIR", folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train_net.py", *cli_args_for(tiny_root, *SLIM, *run)])
        run_command(train_net.main)
    demo_sdtps.load(folder / "run", "MODEL.DEVICE", "cpu").save_pretrained(folder / "saved")
    return folder


@pytest.fixture
def names(places):
    files = ("run/last.pth", "run", "saved/model.safetensors", "saved")
    return [places / file for file in files]


def test_load_takes_every_name(names, places, files, command):
    expected, *others = [demo_sdtps.load(name, "MODEL.DEVICE", "cpu") for name in names]
    others.append(demo_sdtps.Extractor.from_pretrained(places / "saved"))
    words = (names[-1], places / "demo.pth", "--to", "demo", "--overwrite")
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


@pytest.mark.parametrize("name", ["runs/none.pth", "."])
def test_what_is_no_model_is_told(tmp_path, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = command(test_net.main, "--weight", name)
    assert code == 2 and not stdout and stderr.count("\n") == 1 and f"The weights {name}" in stderr


def test_the_card_tells_where_the_model_comes_from(places, tiny_root, tmp_path):
    card = (places / "saved" / "README.md").read_text()
    assert 'reid.features(rgb="rgb.jpg", ni="ni.jpg", ti="ti.jpg")' in card
    (record,) = (record for record in load_records(places / "run") if record["epoch"] == 1)
    for row in record["patterns"].values():
        assert re.search(r" +".join(rf"{100 * row[name]:.1f}" for name in MEASURES), card)
    commit = json.loads((places / "run" / "run.json").read_text())["commit"] or "Synthetic"
    phrases = ("DATASETS.NAMES Synthetic", "MODEL.SLIM_SCORE: learned:Learned", 'load("FOLDER")')
    assert all(phrase in card for phrase in (commit, *phrases))
    assert str(tiny_root) not in card and str(places) not in card
    demo_sdtps.load(places / "saved", "MODEL.DEVICE", "cpu").save_pretrained(tmp_path)  # handed on
    assert (tmp_path / "README.md").read_text() == card
    shutil.copy(places / "run" / "last.pth", tmp_path / "alone.pth")
    demo_sdtps.load(tmp_path / "alone.pth").save_pretrained(tmp_path / "again")
    assert "in percent" not in (tmp_path / "again" / "README.md").read_text()
