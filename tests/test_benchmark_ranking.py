"""The benchmark of ranking and re-ranking: what it checks, never its times."""
import pytest

from demo_sdtps.benchmarks import ranking as benchmark_ranking
from demo_sdtps.benchmarks.plain import demo_ranking
from demo_sdtps.benchmarks.ranking import ranking_rows, reranking_rows


@pytest.mark.parametrize(("rows", "name"), [(ranking_rows, "evaluate_distances"), (reranking_rows, "k_reciprocal")])
def test_results_that_differ_are_not_timed(monkeypatch, rows, name):
    computed = getattr(demo_ranking, name)

    def wrong(*arguments):
        found = computed(*arguments)
        return (found[0], found[1] + 0.1) if name == "evaluate_distances" else found + 0.1

    monkeypatch.setattr(benchmark_ranking.demo_ranking, name, wrong)
    with pytest.raises(RuntimeError, match=r"differs by 0\.\d+ from the reference"):
        rows(quick=True)
