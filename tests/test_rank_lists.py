"""What a drawn rank list says: the return pattern and the distances that it is ranked by."""
import re

import pytest
import torch
from commands import CONFIG, cli_args_for, weights_file

from demo_sdtps.config import load_cfg
from demo_sdtps.engine.evaluation.extraction import extract_features
from demo_sdtps.engine.evaluation.protocol import make_test_data, normalise
from demo_sdtps.engine.evaluation.reranking import k_reciprocal
from demo_sdtps.engine.load import load_model_and_data
from demo_sdtps.tools import draw_ranks


@pytest.fixture
def drawn(command, monkeypatch, tiny_root, tmp_path):
    """Draw one query's list, with these words after the command's: → (title, the gallery's (place, distance), cfg)."""
    figures, save = [], draw_ranks.save
    monkeypatch.setattr(draw_ranks, "save", lambda figure, path: figures.append(figure) or save(figure, path))
    weights = weights_file(tmp_path / "w.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]))

    def call(*words):
        own = cli_args_for(tiny_root, "--weight", weights, "--queries", "1", "--overwrite", "--output",
                           tmp_path / "ranks.png", *words)
        code, _, stderr = command(draw_ranks.main, *own)
        assert code == 0, stderr
        query, *gallery = [axis.get_title() for axis in figures[-1].axes]
        assert query.startswith("query\nid ") and (tmp_path / "ranks.png").stat().st_size > 0
        cells = [re.fullmatch(r"(\d+): d = (\S+)\nid \d+, camera \d", cell).groups() for cell in gallery]
        assert [int(place) for place, _ in cells] == list(range(1, 11))
        cfg = load_cfg(CONFIG, [*cli_args_for(tiny_root, "TEST.WEIGHT", weights)[2:], *(w for w in words if w[:2] != "--")])
        return figures[-1].get_suptitle(), [float(distance) for _, distance in cells], cfg

    return call


def expected(cfg, pattern):
    """The ten smallest distances of query 16 of 32, which is drawn, to those that the protocol leaves."""
    model, splits = load_model_and_data(cfg)
    data = make_test_data(cfg, splits["query"], splits["gallery"])
    features = normalise(cfg, extract_features(cfg, model, data.loader)[0][pattern]).double()
    distance = torch.cdist(features, features).square()
    if cfg.TEST.RE_RANKING == "yes":
        distance = k_reciprocal(features.float(), features.float())
    query = splits["query"][16]
    return sorted(distance[16, place].item() for place, sample in enumerate(splits["gallery"])
                  if (sample.identity, sample.camera) != (query.identity, query.camera))[:10]


@pytest.mark.parametrize(("words", "pattern", "said"), [
    ([], 3, "return pattern 3 (both); d: squared Euclidean distance of L2-normalised features"),
    (["TEST.RETURN_PATTERN=1"], 1, "return pattern 1 (original); d: squared Euclidean distance of L2-normalised features"),
    (["--return_pattern=2", "TEST.RETURN_PATTERN=1", "TEST.FEAT_NORM=no"], 2,
     "return pattern 2 (enhanced); d: squared Euclidean distance of features, features not normalised"),
    (["--return_pattern=1", "TEST.RE_RANKING=yes"], 1, "return pattern 1 (original); d: k-reciprocal distance, re-ranked"),
], ids=["as configured", "by key", "by flag", "re-ranked"])
def test_title_and_distances(drawn, words, pattern, said):
    title, distances, cfg = drawn(*words)
    assert title.splitlines()[1] == said
    assert distances == pytest.approx(expected(cfg, pattern), rel=5e-3)
    assert distances == sorted(distances) and distances[0] < distances[-1]
