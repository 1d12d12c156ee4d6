"""Features as points of a plane, and the command that draws them."""
import sys

import numpy as np
import pytest
from commands import CONFIG, QUERIES, checkpoint_file, cli_args_for
from numeric import assert_close, numpy_generator

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.evaluation.embedding import METHODS, check_method, embed
from demo_sdtps.tools import draw_embedding

CLUSTERS = 3
MARKS = {"pca": [], "tsne": [pytest.mark.slow], "umap": [pytest.mark.slow, pytest.mark.soak]}
SLOW = [pytest.param(method, marks=MARKS[method]) for method in METHODS]


def clusters(seed, each=12, width=20):
    """(features (n, width), the cluster of each): far from each other."""
    draws = numpy_generator(seed)
    labels = np.arange(CLUSTERS).repeat(each)
    centres = 10 * draws.standard_normal((CLUSTERS, width))
    return (centres[labels] + draws.standard_normal((len(labels), width))).astype(np.float32), labels


@pytest.mark.parametrize("method", SLOW)
def test_clusters_stay_apart_and_a_seed_gives_the_same_points(method):
    features, labels = clusters(seed=1)
    points = embed(features, method, seed=5)
    assert points.shape == (len(labels), 2) and points.dtype == np.float32
    assert np.array_equal(points, embed(features, method, seed=5))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (labels[distance.argmin(axis=1)] == labels).all()


def test_pca_shows_the_directions_of_the_largest_variance():
    """Those of the singular value decomposition, but for their signs."""
    features, _ = clusters(seed=2)
    centred = features.astype(np.float64) - features.astype(np.float64).mean(axis=0)
    expected = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    found = embed(features, "pca", seed=0)
    signs = np.sign((found * expected).sum(axis=0))
    assert_close(found, signs * expected, 1)  # rounded from float64


@pytest.mark.parametrize("method", ["pca", pytest.param("tsne", marks=pytest.mark.slow)])
def test_few_features(method):
    assert embed(clusters(seed=3)[0][:4], method, seed=0).shape == (4, 2)
    with pytest.raises(UserError, match="There are 3 samples, but a scatter plot needs at least 4"):
        check_method(method, 3)


@pytest.mark.parametrize(("method", "package", "extra"), [("umap", "umap", "umap"), ("tsne", "sklearn", "report"),
                                                          ("pca", "sklearn", "report")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch, method, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{METHODS[method]} needs .*pip install -e '\.\[{extra}\]'"):
        check_method(method, 4)


@pytest.mark.parametrize(("words", "panels", "points"), [
    ([], ["by identity (4)", "by camera (4)"], QUERIES),
    (["--points", "9", "--return_pattern", "1"], None, 9),
], ids=["default", "chosen"])
def test_what_is_drawn(command, monkeypatch, tiny_root, tmp_path, words, panels, points):
    figures, save = [], draw_embedding.save
    monkeypatch.setattr(draw_embedding, "save", lambda figure, path: figures.append(figure) or save(figure, path))
    weights = checkpoint_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]))
    code, stdout, stderr = command(draw_embedding.main, "--weight", weights, "--output", tmp_path / "x.png", *words)
    assert code == 0 and str(tmp_path / "x.png") in stdout and (tmp_path / "x.png").stat().st_size > 0, stderr
    assert panels is None or [axis.get_title() for axis in figures[0].axes] == panels
    assert sum(len(part.get_offsets()) for part in figures[0].axes[0].collections) == points
    title = figures[0].get_suptitle()
    assert f"PCA of {points} samples" in title and ("(original)" in title) == bool(words)
