"""Every tool that draws a model: one run each on a small one, with slimming, SDTPS, HDM and ATMoE, which leaves its files."""

import json
import shlex
from pathlib import Path

import pytest
from commands import CONFIG, EPOCH, checkpoint_file, cli_args_for
from layouts import pixels, save

from demo_sdtps.commands import (
    draw_attention,
    draw_curves,
    draw_embedding,
    draw_ranks,
    draw_tokens,
    report,
)
from demo_sdtps.config import MODALITIES, load_cfg

MODEL = tuple(
    shlex.split(
        "MODEL.HDM True MODEL.ATM True MODEL.HEAD 4 MODEL.SLIM_BLOCKS [1] "
        "MODEL.SLIM_KEEP [0.5] INPUT.JOINT_AUGMENTATION True"
    )
)
WEIGHT = ("--weight", "run/last.pth", "--output", "x.png")
TOOLS = {
    "rollout": (
        draw_attention,
        (*WEIGHT, "--method", "rollout", "--samples", "1", "TEST.MISS", "t"),
        "x.png",
    ),
    "Grad-CAM": (
        draw_attention,
        (*WEIGHT, "--method", "gradcam", "--samples", "1", "--return_pattern", "1"),
        "x.png",
    ),
    "scatter plot": (draw_embedding, (*WEIGHT, "--points", "9"), "x.png"),
    "rank lists": (draw_ranks, (*WEIGHT, "--queries", "1"), "x.png"),
    "kept patches": (draw_tokens, (*WEIGHT, "--samples", "1"), "x.png"),
    "kept patches of two models": (
        draw_tokens,
        (*WEIGHT, "--weight", "run/last.pth", "--samples", "2"),
        "x.png",
    ),
    "curves": (draw_curves, ("--run", "run"), "run/curves.png"),
    "report": (report, ("--run", "run", "--overwrite"), "run/tokens.png"),
}
"""Command, words, and a file that it must leave; from the folder of a finished run."""


OWN = {
    "rollout": (draw_attention, ("--method", "rollout")),
    "scatter plot": (draw_embedding, ()),
    "kept patches": (draw_tokens, ()),
}


@pytest.mark.parametrize("modalities", [[*MODALITIES], ["RGB", "TI"], ["NI"]], ids="+".join)
@pytest.mark.parametrize("name", OWN)
def test_a_tool_draws_own_images_without_labels(name, modalities, tmp_path, command, monkeypatch):
    """Some absent, by models of fewer modalities too. Grad-CAM and rank lists need labels."""
    for number in range(6):
        for place, modality in enumerate(MODALITIES):
            if number % 3 != place:
                save(
                    tmp_path / "photos" / modality / f"{number}.png",
                    pixels(number, number, modality, 16, 32),
                )
    cfg = load_cfg(CONFIG, cli_args_for(tmp_path, *MODEL, "MODEL.MODALITIES", modalities)[2:])
    weight = checkpoint_file(tmp_path / "last.pth", cfg)
    monkeypatch.chdir(tmp_path)
    tool, words = OWN[name]
    code, stdout, stderr = command(
        tool.main, "--weight", weight, "--images", "photos", "--output", "x.png", *words
    )
    assert code == 0 and "x.png" in stdout, stderr
    assert Path("x.png").stat().st_size > 1000
    labelled = (
        (draw_attention, "--method", "gradcam", "--images", "photos"),
        (draw_ranks, "DATASETS.NAMES", "Images", "DATASETS.ROOT_DIR", "photos"),
    )
    for tool, *words in labelled:
        code, _, stderr = command(tool.main, "--weight", weight, "--output", "z.png", *words)
        assert code == 2 and "have no labels" in stderr and stderr.count("\n") == 1


@pytest.fixture(scope="module")
def folder(tiny_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, *MODEL, "OUTPUT_DIR", folder / "run")[2:])
    (folder / "run").mkdir()
    checkpoint_file(folder / "run" / "last.pth", cfg)
    (folder / "run" / "config.yml").write_text(cfg.dump())
    (folder / "run" / "metrics.json").write_text(json.dumps([EPOCH]))
    return folder


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_leaves_its_file(name, folder, command, monkeypatch):
    tool, words, file = TOOLS[name]
    monkeypatch.chdir(folder)
    (folder / file).unlink(missing_ok=True)
    code, stdout, stderr = command(tool.main, *words)
    assert code == 0 and file in stdout and (folder / file).stat().st_size > 1000, stderr
