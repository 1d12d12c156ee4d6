"""What the pictures share: places, colours, formats; and a picture by every command that draws one."""

import json
import shlex
from itertools import pairwise

import numpy as np
import pytest
from commands import CONFIG, EPOCH, checkpoint_file, cli_args_for
from numeric import assert_close, numpy_generator
from triplets import pixels, save

from demo_sdtps.commands import evaluate
from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.reports.figures import embed, spread

pytestmark = pytest.mark.usefixtures("shallow")
MODEL = shlex.split(
    "MODEL.HDM True MODEL.ATM True MODEL.HEAD 4 MODEL.SLIM_BLOCKS [1] MODEL.SLIM_KEEP [0.5] "
    "INPUT.JOINT_AUGMENTATION True"
)
WEIGHT = ("--weight", "run/last.pth")
DRAWN = {
    "features": (evaluate.draw_embedding, (*WEIGHT, "--points", "9"), ".pdf", b"%PDF"),
    "rank lists": (evaluate.draw_ranks, (*WEIGHT, "--queries", "1"), ".svg", b"<?xml"),
    "kept patches": (evaluate.draw_tokens, (*WEIGHT, "--samples", "1"), ".png", b"\x89PNG"),
    "curves": (evaluate.draw_curves, ("--run", "run"), ".png", b"\x89PNG"),
}
"""Command, words from the folder of a finished run, and the format of the picture."""


@pytest.mark.parametrize("total, count", [(1, 1), (8, 8), (9, 8), (72, 4), (480, 8), (3, 8)])
def test_places_are_spread(total, count):
    places = spread(total, count)
    assert len(set(places)) == min(count, total) and places == sorted(places)
    assert places[0] >= 0 and places[-1] < total
    steps = [after - before for before, after in pairwise(places)]
    assert not steps or max(steps) - min(steps) <= 1
    assert abs(places[0] - (total - 1 - places[-1])) <= 1  # as far from both ends


@pytest.fixture(scope="module")
def folder(tiny_root, tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("drawn")
    cfg = load_cfg(CONFIG, cli_args_for(tiny_root, *MODEL, "OUTPUT_DIR", folder / "run")[2:])
    (folder / "run").mkdir()
    checkpoint_file(folder / "run" / "last.pth", cfg)
    (folder / "run" / "metrics.json").write_text(json.dumps([EPOCH]))
    return folder


@pytest.mark.parametrize("name", DRAWN)
def test_a_command_leaves_its_picture(name, folder, success, monkeypatch):
    main, words, suffix, magic = DRAWN[name]
    monkeypatch.chdir(folder)
    assert f"x{suffix}" in success(main, *words, "--output", f"x{suffix}", "--overwrite")
    assert (folder / f"x{suffix}").read_bytes().startswith(magic)


@pytest.mark.parametrize(
    "modalities", [pytest.param(["RGB", "TI"], marks=pytest.mark.soak), ["NI"]], ids="+".join
)
@pytest.mark.slow
def test_own_images_without_labels_are_drawn(modalities, tmp_path, success, refusal):
    """Some absent, by models of fewer modalities. Rank lists need labels."""
    for number in range(6):
        for place, modality in enumerate(MODALITIES):
            if number % 3 != place:
                path = tmp_path / "photos" / modality / f"{number}.png"
                save(path, pixels(number, number, modality, 16, 32))
    cfg = load_cfg(CONFIG, cli_args_for(tmp_path, *MODEL, "MODEL.MODALITIES", modalities)[2:])
    weight = ("--weight", checkpoint_file(tmp_path / "last.pth", cfg))
    photos = ("--images", tmp_path / "photos")
    for main in (evaluate.draw_embedding, evaluate.draw_tokens):
        path = tmp_path / f"{main.__name__}.png"
        assert str(path) in success(main, *weight, *photos, "--output", path)
    for name in set(MODALITIES) - {*modalities}:
        unread = ("--images", tmp_path / "photos" / name, "--modality", name)
        assert str(tmp_path / "photos" / name) in refusal(evaluate.draw_tokens, *weight, *unread)
    keys = ("DATASETS.NAMES", "Images", "DATASETS.ROOT_DIR", "photos")
    assert "labels" in refusal(evaluate.draw_ranks, *weight, *keys)


def clusters(seed, each=12, width=20):
    """Features (n, width) of three clusters that are far from each other, and the cluster of each."""
    draws, labels = numpy_generator(seed), np.arange(3).repeat(each)
    centres = 10 * draws.standard_normal((3, width))
    return (centres[labels] + draws.standard_normal((len(labels), width))).astype("f"), labels


@pytest.mark.parametrize("method", ["pca", pytest.param("tsne", marks=pytest.mark.slow)])
def test_clusters_stay_apart_and_a_seed_gives_the_same_points(method):
    features, labels = clusters(seed=1)
    points = embed(features, method, seed=5)
    assert points.shape == (len(labels), 2) and points.dtype == np.float32
    assert np.array_equal(points, embed(features, method, seed=5))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (labels[distance.argmin(axis=1)] == labels).all()
    assert np.isfinite(embed(features[:2], method, seed=5)).all()


def test_pca_shows_the_directions_of_the_largest_variance():
    """Those of the singular value decomposition, but for their signs."""
    features, _ = clusters(seed=2)
    centred = features.astype(np.float64) - features.astype(np.float64).mean(axis=0)
    expected = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    actual = embed(features, "pca", seed=0)
    signs = np.sign((actual * expected).sum(axis=0))
    assert_close(actual, signs * expected, 1)  # rounded from float64
