"""Recall of image-text retrieval against a plain sort, its folds, its table and its errors."""
import pytest
import torch
from numeric import generator
from reference import retrieval as reference

from demo_sdtps.evaluation.tables import percent_table
from demo_sdtps.seps import recall as module
from demo_sdtps.seps.recall import five_fold, retrieval

NAMES = [f"{way} R@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
COUNTS = {"one": [1] * 30, "five": [5] * 20, "unequal": [1, 7, 2, 1, 3, 12, 1, 4, 1, 1, 2, 6, 1, 3, 1, 1, 5, 2, 1, 1],
          "one image": [4]}


def draw(seed, counts, levels=None, shuffle=True, lift=0.8):
    """Similarities, those of matches raised a little, and the captions' images; of few `levels` there are many ties."""
    draws = generator(seed)
    image_of = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    if shuffle:
        image_of = image_of[torch.randperm(len(image_of), generator=draws)]
    similarity = torch.randn(len(counts), len(image_of), generator=draws)
    similarity[image_of, torch.arange(len(image_of))] += lift
    return (similarity * levels).round() / levels if levels else similarity, image_of


def assert_same(found, expected):
    assert list(found) == [*NAMES, "rSum"]
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("levels", [None, 2, 1], ids=["no ties", "ties", "mostly ties"])
@pytest.mark.parametrize("counts", COUNTS)
def test_against_a_sort(counts, levels):
    similarity, image_of = draw(0, COUNTS[counts], levels)
    found = retrieval(similarity, image_of)
    assert_same(found, reference.retrieval(similarity.tolist(), image_of.tolist()))
    assert found["rSum"] == pytest.approx(sum(found[name] for name in NAMES))
    if counts != "one image" and levels is None:
        assert all(found[f"{way} R@1"] < 100 and found[f"{way} R@10"] > 0 for way in ("i2t", "t2i"))


def test_recalls_worked_out_by_hand():
    """Image 0 finds its second caption first; image 1 finds another's first. Captions 0 and 2 are nearer to the other image."""
    similarity = torch.tensor([[0.1, 0.9, 0.2], [0.3, 0.5, 0.1]])
    found = retrieval(similarity, torch.tensor([0, 0, 1]))
    assert_same(found, dict(zip(NAMES, (50, 100, 100, 100 / 3, 100, 100), strict=True)) | {"rSum": 450 + 100 / 3})


@pytest.mark.parametrize("value", [0.0, -1.5])
def test_a_match_ranks_behind_its_equals(value):
    """Equal similarities are no evidence: only where there are fewer candidates than k is a hit certain."""
    image_of = torch.arange(8).repeat_interleave(2)
    found = retrieval(torch.full((8, 16), value), image_of)
    assert_same(found, dict.fromkeys(NAMES, 0) | {"t2i R@10": 100, "rSum": 100})


def test_the_order_of_the_captions_plays_no_part():
    similarity, image_of = draw(4, COUNTS["unequal"], levels=2)
    order = torch.randperm(len(image_of), generator=generator(5))
    assert retrieval(similarity[:, order], image_of[order]) == retrieval(similarity, image_of)


@pytest.mark.parametrize("elements", [1, 19, 57, 58, 300, 10**6])
def test_blocks_do_not_change_the_result(monkeypatch, elements):
    similarity, image_of = draw(6, COUNTS["unequal"], levels=2)
    whole = retrieval(similarity, image_of)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", elements)
    assert retrieval(similarity, image_of) == whole


def test_a_thousand_images_with_five_captions():
    """The size of Flickr30K's test split, where the matches' ranks are known: each is as many as there are others as good."""
    similarity, image_of = draw(7, [5] * 1000, shuffle=False, lift=3.0)
    found = retrieval(similarity, image_of)
    own = similarity[image_of, torch.arange(5000)]
    others = image_of != torch.arange(1000)[:, None]
    best = own.view(1000, 5).amax(1, keepdim=True)
    for way, ranks in (("t2i", (others & (similarity >= own)).sum(0)), ("i2t", (others & (similarity >= best)).sum(1))):
        for k in (1, 5, 10):
            assert found[f"{way} R@{k}"] == pytest.approx(100 * float((ranks < k).double().mean()), abs=1e-9)
    assert 5 < found["t2i R@1"] < found["t2i R@10"] < 95


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("int_type", [torch.int32, torch.int64])
def test_types(dtype, int_type):
    similarity, image_of = draw(8, COUNTS["five"])
    similarity = similarity.to(dtype).requires_grad_()
    assert_same(retrieval(similarity, image_of.to(int_type)), reference.retrieval(similarity.tolist(), image_of.tolist()))


@pytest.mark.parametrize(("counts", "folds"), [("five", 5), ("five", 1), ("unequal", 4), ("one", 3), ("one", 30)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_folds(counts, folds, shuffle):
    similarity, image_of = draw(9, COUNTS[counts], shuffle=shuffle)
    found = five_fold(similarity, image_of, folds)
    assert_same(found, reference.five_fold(similarity.tolist(), image_of.tolist(), folds))
    assert found["rSum"] == pytest.approx(sum(found[name] for name in NAMES))


def test_five_folds_are_the_mean_of_five_parts_of_a_fifth():
    similarity, image_of = draw(10, [2] * 50, shuffle=False)
    parts = [retrieval(similarity[start:start + 10, 2 * start:2 * start + 20], torch.arange(10).repeat_interleave(2))
             for start in range(0, 50, 10)]
    found = five_fold(similarity, image_of)
    assert found == pytest.approx({name: sum(part[name] for part in parts) / 5 for name in found})
    assert found["rSum"] > retrieval(similarity, image_of)["rSum"], "among fewer, a match is easier to find"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("elements", [1, 10**6])
@pytest.mark.parametrize("is_match", [True, False])
def test_similarities_that_are_not_finite(monkeypatch, value, elements, is_match):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", elements)
    similarity, image_of = draw(13, COUNTS["five"])
    similarity[image_of[60] if is_match else (image_of[60] + 1) % 20, 60] = value
    for function in (retrieval, five_fold):
        if function is retrieval or is_match:  # similarities between two folds are not looked at
            with pytest.raises(ValueError, match=r"not finite.*embeddings"):
                function(similarity, image_of)


def test_the_table():
    measures = dict(zip(NAMES, (86.12, 97.0, 99.0, 71.0, 90.0, 94.96), strict=True)) | {"rSum": 538.08}
    table = percent_table({"SEPS": measures, "SEPS, 5 folds": {name: value / 2 for name, value in measures.items()}})
    header, first, second = table.splitlines()
    assert header.split() == " ".join([*NAMES, "rSum"]).split()
    assert first.split() == ["SEPS", "86.1", "97.0", "99.0", "71.0", "90.0", "95.0", "538.1"]
    assert second.startswith("SEPS, 5 folds ") and second.endswith("269.0")
    assert len({len(line) for line in (header, first, second)}) == 1
