"""demo-sdtps report without a page: the tables of the runs."""

import pytest
from commands import make_run, parse_table, read_scores, table_rows

from demo_sdtps.commands import evaluate
from demo_sdtps.commands import test as test_net


@pytest.fixture
def runs(tiny_root, tmp_path):
    """The folders of two runs."""
    slim = ("MODEL.SLIM_SCORE", "saliency", "MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]")
    return make_run(tmp_path / "dense", tiny_root), make_run(tmp_path / "slim", tiny_root, *slim)


def test_every_run_has_the_table_of_its_evaluation(runs, success, tmp_path):
    words = [word for run in runs for word in ("--run", run)]
    printed = success(evaluate.report, *words).split("Synthetic in ")[1:]
    assert len(printed) == len(runs)
    for run, text in zip(runs, printed, strict=True):
        test = ("--weight", run / "last.pth", "--json", tmp_path / "x.json", "--overwrite")
        success(test_net.main, *test)
        untrained = ["50.0"]  # of every pattern, in the first record
        expected = table_rows(read_scores(tmp_path / "x.json"))
        assert str(run) in text and "mAP untrained" in text
        assert parse_table(text) == {name: row + untrained for name, row in expected.items()}


def test_the_untrained_model_is_that_of_the_same_options(runs, success):
    assert "mAP untrained" not in success(evaluate.report, "--run", runs[0], "TEST.FEAT_NORM", "no")
