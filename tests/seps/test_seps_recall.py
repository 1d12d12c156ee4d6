"""Recall of image-text retrieval against a plain sort, its folds, its table and its errors."""

import pytest
import torch
from numeric import generator

from seps.evaluation import five_fold, retrieval
from tests.reference import retrieval as reference

NAMES = [f"{way} R@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
COUNTS = {
    "one": [1] * 30,
    "five": [5] * 20,
    "unequal": [1, 7, 2, 1, 3, 12, 1, 4, 1, 1, 2, 6, 1, 3, 1, 1, 5, 2, 1, 1],
    "one image": [4],
}


def draw(seed, counts, levels=None, shuffle=True, lift=0.8):
    """Similarities, those of matches raised a little, and the captions' images; of few `levels` there are many ties."""
    draws = generator(seed)
    image_of = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    if shuffle:
        image_of = image_of[torch.randperm(len(image_of), generator=draws)]
    similarity = torch.randn(len(counts), len(image_of), generator=draws)
    similarity[image_of, torch.arange(len(image_of))] += lift
    return (similarity * levels).round() / levels if levels else similarity, image_of


def assert_same(actual, expected):
    assert list(actual) == [*NAMES, "rSum"]
    assert actual == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("levels", [None, 2, 1], ids=["no ties", "ties", "mostly ties"])
@pytest.mark.parametrize("counts", COUNTS)
def test_against_a_sort(counts, levels):
    similarity, image_of = draw(0, COUNTS[counts], levels)
    actual = retrieval(similarity, image_of)
    assert_same(actual, reference.retrieval(similarity.tolist(), image_of.tolist()))
    assert actual["rSum"] == pytest.approx(sum(actual[name] for name in NAMES))
    if counts != "one image" and levels is None:
        assert all(
            actual[f"{way} R@1"] < 100 and actual[f"{way} R@10"] > 0 for way in ("i2t", "t2i")
        )


@pytest.mark.parametrize(("counts", "folds"), [("five", 5), ("unequal", 4), ("one", 30)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_folds(counts, folds, shuffle):
    similarity, image_of = draw(9, COUNTS[counts], shuffle=shuffle)
    actual = five_fold(similarity, image_of, folds)
    assert_same(actual, reference.five_fold(similarity.tolist(), image_of.tolist(), folds))
    assert actual["rSum"] == pytest.approx(sum(actual[name] for name in NAMES))
