"""What tools/selection_quality.py refuses: one sentence, exit code 2, nothing written."""
import shutil

import pytest
import torch
from commands import CONFIG, ONE_LINE, cli_args_for, contents, weights_file
from PIL import Image

from demo_sdtps.config import load_cfg
from demo_sdtps.tools import selection_quality


def black(masks):
    for path in masks.iterdir():
        Image.new("L", (16, 32)).save(path)


def first(masks):
    return sorted(masks.iterdir())[0]


CASES = {
    "no masks": (shutil.rmtree, [], "is missing"),
    "a missing mask": (lambda masks: first(masks).unlink(), [], "is missing"),
    "a mask that cannot be read": (lambda masks: first(masks).write_bytes(b"this is a text"), [], "cannot be read"),
    "no patch on the person": (black, [], "nothing to find"),
    "no selector": (None, ["MODEL.USE_SDTPS", "False"], "MODEL.USE_SDTPS is False"),
    "one case where all are measured": (None, ["TEST.MISS", "nt"], "TEST.MISS is 'nt'"),
}


@pytest.mark.parametrize(("damage", "more", "said"), CASES.values(), ids=CASES)
def test_what_is_refused(own_root, command, tmp_path, damage, more, said):
    words = cli_args_for(own_root)
    words += ["--weight", weights_file(tmp_path / "weights.pth", load_cfg(CONFIG, words[2:]))]
    if damage:
        damage(own_root / "RGBNT201" / "test" / "MASK")
    before = contents(tmp_path)
    code, stdout, stderr = command(selection_quality.main, *words, *more)
    assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1 and said in stderr, stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["backbone.vit.norm.weight", "sdtps.nir_sparse.score_predictor.2.bias"])
def test_scores_that_are_not_finite_are_refused(own_root, command, tmp_path, name):
    words = cli_args_for(own_root)
    path = weights_file(tmp_path / "weights.pth", load_cfg(CONFIG, words[2:]))
    content = torch.load(path, weights_only=True)
    content["model"][name].fill_(torch.nan)
    torch.save(content, path)
    code, _, stderr = command(selection_quality.main, *words, "--weight", path)
    assert code == 2 and "not finite" in stderr
