"""The picture of kept tokens: its rows, its scores, and what it draws once."""

from dataclasses import replace

import numpy as np
import torch
from commands import CONFIG, cli_args_for, weights_file

from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.synthetic import MARKER
from demo_sdtps.evaluation.extraction import load_model_and_data
from demo_sdtps.reports.figures import DROPPED, OPACITY, images, spread
from demo_sdtps.reports.tokens import description, panels, patch_grids, token_samples

SLIM = (
    "MODEL.SLIM_BLOCKS",
    "[0,2]",
    "MODEL.SLIM_KEEP",
    "[0.5,0.5]",
    "MODEL.SLIM_SCORE",
    "distinctness",
)


def make_samples(folder, lights):
    return [
        Sample((str(folder / "test" / "RGB" / f"{place:06}_cam1_{light}_00.jpg"),), place, 0)
        for place, light in enumerate(lights)
    ]


def nights(samples):
    return [int(sample.paths[0].split("_")[-2]) for sample in samples]


def test_half_of_the_rows_are_by_day(tmp_path):
    mostly = make_samples(tmp_path, [1] * 20 + [0] * 5)
    # another data set
    assert token_samples(mostly, 8) == [mostly[place] for place in spread(25, 8)]
    (tmp_path / MARKER).touch()
    for count, dark in ((8, 4), (7, 3), (1, 0)):
        chosen = token_samples(mostly, count)
        assert len(set(chosen)) == count and sum(nights(chosen)) == dark
        assert chosen == sorted(chosen, key=lambda sample: sample.identity)


def draw_grids(root, tmp_path, *more):
    words = cli_args_for(root, *SLIM, *more)[2:]
    cfg = load_cfg(
        CONFIG,
        [*words, "TEST.WEIGHT", str(weights_file(tmp_path / "w.pth", load_cfg(CONFIG, words)))],
    )
    model, splits = load_model_and_data(cfg, ("query",))
    samples = splits["query"][:3]
    grids = patch_grids(cfg, model, samples)
    return cfg, samples, grids, description(cfg, model, grids)


def test_what_is_kept_has_the_highest_scores(tiny_root, tmp_path):
    _, samples, grids, text = draw_grids(tiny_root, tmp_path)
    assert list(grids) == ["stage 1", "stage 2", "SDTPS"]
    reached = torch.ones(len(samples), 32, dtype=torch.bool)
    for by_modality in grids.values():
        for grid in by_modality.values():
            kept, score = grid.flatten(2).unbind(dim=1)
            assert torch.equal(~score.isnan(), reached)
            for mask, scores in zip(kept.bool(), score, strict=True):
                left = scores[~mask & ~scores.isnan()]
                assert scores[mask].min() >= left.max()
        reached = kept.bool() if by_modality is not grids["SDTPS"] else reached
    assert [int(grid["NI"][0, 0].sum()) for grid in grids.values()] == [16, 8, 4]
    assert text.startswith("Of the 32 patches of each image, slimming (")
    assert ") keeps 16 before the first block and 8 after block 2, and SDTPS 4" in text


def test_a_shared_set_is_drawn_once(tiny_root, tmp_path):
    for words, shared in (((), True), (("MODEL.SLIM_SHARED", "False"), False)):
        cfg, samples, grids, _ = draw_grids(tiny_root, tmp_path, "MODEL.USE_SDTPS", "False", *words)
        titles = list(panels(cfg, samples[0], grids, 0))
        assert [title for title in titles if title in MODALITIES] == list(MODALITIES)
        stage_titles = [title for title in titles if "stage 1" in title]
        assert (
            len(stage_titles) == (2 if shared else 2 * len(MODALITIES))
            and ("shared" in stage_titles[0]) == shared
        )


def test_dropped_patches_are_covered_on_the_images_there_are(tiny_root, tmp_path):
    """A shared set on their mean."""
    cfg, samples, grids, _ = draw_grids(tiny_root, tmp_path, "MODEL.USE_SDTPS", "False")
    kept = grids["stage 1"]["RGB"][0, 0].bool().numpy()
    kept = kept.repeat(4, axis=0).repeat(4, axis=1)  # of patches of 4 by 4 pixels
    rgb, _, ti = images(cfg, samples[0])
    sample = replace(samples[0], paths=(samples[0].paths[0], None, samples[0].paths[2]))
    actual = panels(cfg, sample, grids, 0)["stage 1:\nkept, shared"]
    mean = (rgb.astype(float) + ti) // 2
    assert np.array_equal(actual[kept], mean[kept])
    covered = mean + OPACITY * (np.array(DROPPED) - mean)
    assert abs(actual[~kept] - covered[~kept]).max() < 1


def test_a_missing_modality_keeps_nothing(tiny_root, tmp_path):
    cfg, samples, grids, _ = draw_grids(tiny_root, tmp_path, "TEST.MISS", "nt")
    assert [list(by_modality) for by_modality in grids.values()] == [["RGB"]] * 3
    assert not [
        title
        for title in panels(cfg, samples[0], grids, 0)
        if title.endswith((", NI", ", TI", "shared"))
    ]
