"""What tools/selection_quality.py refuses: one sentence, exit code 2, nothing written."""
import pytest
import torch
from commands import BASELINE, CONFIG, ONE_LINE, cli_args_for, contents, weights_file
from layouts import WRITERS
from PIL import Image

from demo_sdtps.config import load_cfg
from demo_sdtps.tools import selection_quality


@pytest.fixture
def words(own_root, tmp_path):
    words = cli_args_for(own_root)
    return [*words, "--weight", weights_file(tmp_path / "weights.pth", load_cfg(CONFIG, words[2:]))]


@pytest.fixture
def refusal(words, command, tmp_path):
    """Call the command, which must end with one line, print nothing else and write nothing: → that line."""
    def call(*more, words=words):
        before = contents(tmp_path)
        code, stdout, stderr = command(selection_quality.main, *words, *more)
        assert code == 2 and not stdout
        assert stderr.startswith(ONE_LINE) and stderr.count("\n") == 1
        assert contents(tmp_path) == before
        return stderr

    return call


def a_mask(root):
    return sorted((root / "RGBNT201" / "test" / "MASK").iterdir())[2]


def test_fails_without_masks(refusal, own_root):
    for path in (own_root / "RGBNT201" / "test" / "MASK").iterdir():
        path.unlink()
    a_folder = own_root / "RGBNT201" / "test" / "MASK"
    a_folder.rmdir()
    said = refusal()
    assert str(a_folder) in said and "no foreground masks" in said and "tools/make_masks.py" in said


def test_fails_for_a_missing_mask(refusal, own_root):
    gone = a_mask(own_root)
    gone.unlink()
    assert f"The mask {gone} is missing" in refusal()


@pytest.mark.parametrize("content", [b"", b"this is a text", b"\x89PNG\r\n\x1a\n cut short"])
def test_fails_for_a_mask_that_cannot_be_read(refusal, own_root, content):
    a_mask(own_root).write_bytes(content)
    said = refusal()
    assert str(a_mask(own_root)) in said and "cannot be read" in said


def test_fails_where_no_patch_is_on_the_person(refusal, own_root):
    for path in (own_root / "RGBNT201" / "test" / "MASK").iterdir():
        Image.new("L", (16, 32)).save(path)
    assert "nothing to find" in refusal()


def test_fails_without_masks_of_images_that_hold_three_modalities(refusal, tmp_path):
    WRITERS["RGBNT100"](tmp_path / "other")
    words = cli_args_for(tmp_path / "other", "DATASETS.NAMES", "RGBNT100", "MODEL.SIE_CAMERA", "False")
    weights_file(tmp_path / "other.pth", load_cfg(CONFIG, words[2:]), dataset="RGBNT100")
    said = refusal(words=[*words, "--weight", tmp_path / "other.pth"])
    assert "no foreground masks" in said and str(tmp_path / "other" / "RGBNT100" / "rgbir" / "query" / "MASK") in said


def test_fails_without_sdtps(refusal, words):
    assert "MODEL.USE_SDTPS is False" in refusal("MODEL.USE_SDTPS", "False")
    assert "MODEL.USE_SDTPS is False" in refusal(words=["--config_file", str(BASELINE), *words[2:]])


@pytest.mark.parametrize("case", ["r", "nt", "all"])
def test_fails_for_one_case_where_all_are_measured(refusal, case):
    said = refusal("TEST.MISS", case)
    assert f"TEST.MISS is {case!r}" in said and "set it to 'nothing'" in said


@pytest.mark.parametrize("flag, name, suffix", [("--output", "x.jpg", ".png"), ("--output", "folder.png", ".png"),
                                                ("--output", "file/x.png", ".png"), ("--json", "x", ".json"),
                                                ("--json", "folder.json", ".json"), ("--json", "file/x.json", ".json")])
def test_fails_for_an_output_that_cannot_be_written(refusal, tmp_path, flag, name, suffix):
    for folder in ("folder.png", "folder.json"):
        (tmp_path / folder).mkdir()
    (tmp_path / "file").touch()
    said = refusal(flag, tmp_path / name)
    assert str(tmp_path / name) in said and f"must be a file ending in {suffix}" in said


@pytest.mark.parametrize("name", ["backbone.vit.norm.weight", "sdtps.nir_sparse.score_predictor.2.bias"])
def test_fails_for_scores_that_are_not_finite(refusal, words, name):
    content = torch.load(words[-1], weights_only=True)
    content["model"][name].fill_(torch.nan)
    torch.save(content, words[-1])
    assert "not finite" in refusal()
