"""The benchmark of ranking and re-ranking: its rows and what it checks, never its times."""
import math

import pytest

from demo_sdtps.benchmarks import ranking as benchmark_ranking
from demo_sdtps.benchmarks.plain import demo_ranking
from demo_sdtps.benchmarks.ranking import ranking_rows, reranking_rows


@pytest.mark.parametrize(("rows", "expected"), [
    (ranking_rows, [("mAP and CMC of distances, 40 × 300", "≥ 20×"), ("mAP and CMC of features", ""),
                    ("mAP and CMC per query and million of gallery, of 600", ""),
                    ("mAP and CMC per query and million of gallery, of 1,200", ""),
                    ("mAP and CMC of 20 × 2,000", ""), ("mAP and CMC of 20 × 2,000", "≤ 4 GiB")]),
    (reranking_rows, [("re-ranking, 30 + 30, the same images", "≥ 20×"), ("re-ranking, 30 + 60, other images", "≥ 20×"),
                      ("re-ranking, 60 + 120", ""), ("re-ranking, 60 + 120", "≤ 8 GiB")])])
def test_rows(rows, expected):
    found = rows(quick=True)
    assert [(row.what[:len(what)], row.target) for row, (what, _) in zip(found, expected, strict=True)] == expected
    for row in found:
        for number in (row.reference, row.ours, row.ratio):
            assert number is None or (math.isfinite(number) and number > 0)
        assert (row.met is None) == (row.target == "")


@pytest.mark.parametrize(("rows", "name"), [(ranking_rows, "evaluate_distances"), (reranking_rows, "k_reciprocal")])
def test_results_that_differ_are_not_timed(monkeypatch, rows, name):
    computed = getattr(demo_ranking, name)

    def wrong(*arguments):
        found = computed(*arguments)
        return (found[0], found[1] + 0.1) if name == "evaluate_distances" else found + 0.1

    monkeypatch.setattr(benchmark_ranking.demo_ranking, name, wrong)
    with pytest.raises(RuntimeError, match=r"differs by 0\.\d+ from the reference"):
        rows(quick=True)
