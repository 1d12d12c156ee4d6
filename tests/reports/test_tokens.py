"""The picture of kept patches: which are kept, and what it covers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import CONFIG, cli_args_for, weights_file

from demo_sdtps.config import load_cfg
from demo_sdtps.evaluation.protocol import load_model_and_data
from demo_sdtps.reports import figures
from demo_sdtps.reports.figures import COLOURS, description, draw_tokens, images, kept_patches

SLIM = ("MODEL.SLIM_BLOCKS", "[0,2]", "MODEL.SLIM_KEEP", "[0.5,0.5]", "TEST.IMS_PER_BATCH", "2")


@pytest.fixture
def load(tiny_root, tmp_path):
    """Load an untrained model: → (cfg, model, three samples)."""

    def call(*more):
        words = cli_args_for(tiny_root, *SLIM, *more)[2:]
        weights = str(weights_file(tmp_path / "w.pth", load_cfg(CONFIG, words)))
        cfg = load_cfg(CONFIG, [*words, "TEST.WEIGHT", weights])
        model, splits = load_model_and_data(cfg, ("query",))
        return cfg, model, splits["query"][:3]

    return call


def test_every_stage_keeps_of_what_the_one_before_kept(load):
    """In batches of two samples."""
    cfg, model, samples = load()
    grids = kept_patches(cfg, model, samples)
    assert list(grids) == ["stage 1", "stage 2", "SDTPS"]
    before = torch.ones(3, 8, 4)
    for title, count in (("stage 1", 16), ("stage 2", 8), ("SDTPS", 4)):
        for kept in grids[title].values():
            assert kept.flatten(1).sum(dim=1).tolist() == [count] * 3 and (kept <= before).all()
        before = before if title == "SDTPS" else kept
    text = "Of the 32 patches of each image, stage 1 keeps 16, stage 2 keeps 8, SDTPS keeps 4"
    assert description(model, grids) == text


@pytest.mark.parametrize("missing", ["nothing", "n"])
def test_dropped_patches_are_covered_on_their_images(load, monkeypatch, tmp_path, missing):
    cfg, model, samples = load("MODEL.USE_SDTPS", "False", "TEST.MISS", missing)
    shown = []
    monkeypatch.setattr(figures, "save", lambda figure, path: shown.append(figure))
    samples[1] = replace(samples[1], paths=(*samples[1].paths[:2], None))
    draw_tokens(cfg, model, samples, tmp_path / "x.png")
    columns = {axis.get_title(): axis for axis in shown[0].axes[: len(shown[0].axes) // 3]}
    of_ni = [] if missing == "n" else ["stage 1, NI", "stage 2, NI"]
    names = ["RGB", "stage 1, RGB", "stage 2, RGB", "NI", *of_ni]
    assert list(columns) == [*names, "TI", "stage 1, TI", "stage 2, TI"]
    kept = kept_patches(cfg, model, samples)["stage 1"]["RGB"][0].bool().numpy()
    kept = kept.repeat(4, axis=0).repeat(4, axis=1)  # of patches of 4 by 4 pixels
    image = images(cfg, samples[0])[0].astype(float)
    actual = columns["stage 1, RGB"].get_images()[0].get_array().astype(float)
    *colour, opacity = COLOURS["dropped"]
    assert np.array_equal(actual[kept], image[kept]) and 0 < kept.sum() < kept.size
    covered = image + opacity * (np.array(colour) - image)
    assert abs(actual[~kept] - covered[~kept]).max() < 1
