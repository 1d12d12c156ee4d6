"""Every tool that draws a model: one run each on a small one, with slimming, SDTPS, HDM and ATMoE, which leaves its files."""

import json
import shlex

import pytest
from commands import CONFIG, EPOCH, checkpoint_file, cli_args_for
from layouts import pixels, save

from demo_sdtps.commands import draw
from demo_sdtps.config import MODALITIES, load_cfg

pytestmark = pytest.mark.usefixtures("shallow")

MODEL = shlex.split(
    "MODEL.HDM True MODEL.ATM True MODEL.HEAD 4 MODEL.SLIM_BLOCKS [1] MODEL.SLIM_KEEP [0.5] "
    "INPUT.JOINT_AUGMENTATION True"
)
WEIGHT = ("--weight", "run/last.pth", "--output", "x.png")
ONE, TWO = ("--samples", "1"), ("--samples", "2")
TOOLS = {
    "scatter plot": (draw.embedding, (*WEIGHT, "--points", "9"), "x.png"),
    "rank lists": (draw.ranks, (*WEIGHT, "--queries", "1"), "x.png"),
    "kept patches": (draw.tokens, (*WEIGHT, *ONE), "x.png"),
    "kept patches of two models": (draw.tokens, (*WEIGHT, *TWO, *WEIGHT[:2]), "x.png"),
    "curves": (draw.curves, ("--run", "run"), "run/curves.png"),
}
"""Command, words, and a file that it must leave; from the folder of a finished run."""
SLOWEST = ("kept patches of two models",)


@pytest.mark.parametrize(
    "modalities", [pytest.param(["RGB", "TI"], marks=pytest.mark.soak), ["NI"]], ids="+".join
)
@pytest.mark.slow
def test_tools_draw_own_images_without_labels(modalities, tmp_path, command, refusal):
    """Some absent, by models of fewer modalities. Rank lists need labels."""
    for number in range(6):
        for place, modality in enumerate(MODALITIES):
            if number % 3 != place:
                path = tmp_path / "photos" / modality / f"{number}.png"
                save(path, pixels(number, number, modality, 16, 32))
    cfg = load_cfg(CONFIG, cli_args_for(tmp_path, *MODEL, "MODEL.MODALITIES", modalities)[2:])
    weight = ("--weight", checkpoint_file(tmp_path / "last.pth", cfg))
    photos = ("--images", tmp_path / "photos")
    for tool in (draw.embedding, draw.tokens):
        path = tmp_path / f"own_{tool.__name__}.png"
        code, stdout, stderr = command(tool, *weight, *photos, "--output", path)
        assert code == 0 and str(path) in stdout and path.stat().st_size > 1000, stderr
    for name in set(MODALITIES) - {*modalities}:
        unread = ("--images", tmp_path / "photos" / name, "--modality", name)
        assert f"are of {name} (--modality or DATASETS.FOLDERS), but" in refusal(
            draw.tokens, *weight, *unread
        )
    keys = ("DATASETS.NAMES", "Images", "DATASETS.ROOT_DIR", "photos")
    assert "have no labels" in refusal(draw.ranks, *weight, *keys)


@pytest.fixture(scope="module")
def folder(tiny_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, *MODEL, "OUTPUT_DIR", folder / "run")[2:])
    (folder / "run").mkdir()
    checkpoint_file(folder / "run" / "last.pth", cfg)
    (folder / "run" / "config.yml").write_text(cfg.dump())
    (folder / "run" / "metrics.json").write_text(json.dumps([EPOCH]))
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOWEST)) for name in TOOLS]
)
def test_a_tool_leaves_its_file(name, folder, command, monkeypatch):
    tool, words, file = TOOLS[name]
    monkeypatch.chdir(folder)
    (folder / file).unlink(missing_ok=True)
    code, stdout, stderr = command(tool, *words)
    assert code == 0 and file in stdout and (folder / file).stat().st_size > 1000, stderr
