"""benchmarks/run.py: the command, its table, and the table in docs/performance.md."""
import json
import math

import pytest
import torch
from commands import ONE_LINE, ROOT

from demo_sdtps.benchmarks import run as benchmark
from demo_sdtps.benchmarks.rows import Row, as_markdown, in_turns, peak_memory, speed_row

PAGES = {"performance": "performance", "seps": "seps", "slimming": "performance", "search": "search", "busy": "performance"}
"""In docs: what was measured, and the page that shows it."""
MEMORY = 300 << 20


@pytest.mark.parametrize("measured", PAGES)
def test_the_page_shows_what_was_measured(measured):
    record = record_of(measured)
    assert not record["quick"]
    assert benchmark.as_report(record) in (ROOT / "docs" / f"{PAGES[measured]}.md").read_text(encoding="utf-8")


def test_every_part_was_measured():
    measured = {part for name in PAGES for part in record_of(name)["parts"]}
    assert measured >= set(benchmark.PARTS)


def record_of(measured):
    return json.loads((ROOT / "docs" / f"{measured}.json").read_text())


@pytest.mark.parametrize("parts", [["fusion"], *(pytest.param([part], marks=[pytest.mark.slow, pytest.mark.soak]) for part in (
    "sdtps", "evaluation", "ranking", "reranking"))], ids=" ".join)
def test_the_command_prints_and_writes_what_it_measured(command, tmp_path, parts):
    output = tmp_path / "new" / "bench.json"
    code, stdout, _ = command(benchmark.main, *parts, "--device", "cpu", "--quick", "--json", output)
    assert code == 0
    record = json.loads(output.read_text())
    assert stdout.strip() == benchmark.as_report(record)
    assert list(record["parts"]) == parts and record["quick"]
    rows = [Row(**row) for rows in record["parts"].values() for row in rows]
    for row in rows:
        assert (row.ours is None or math.isfinite(row.ours)) and (row.met is None) == (not row.target), row
        if row.ratio is not None:
            assert row.ratio == pytest.approx(row.reference / row.ours), row


def test_a_part_that_is_not_there_is_reported(command):
    code, _, stderr = command(benchmark.main, "rankings")
    assert code == 2 and stderr.startswith(ONE_LINE) and "'rankings'" in stderr and "ranking, reranking" in stderr


def test_rows_as_a_table():
    rows = [speed_row("fast", {"reference": 3.0, "ours": 0.25}, at_least=10),
            speed_row("slow", {"reference": 1.5, "ours": 3.0}, at_least=1),
            Row("share", None, 87.654, "%", None, "≥ 85 %", True), Row("size", 1234567.0, 2.0, "MiB", 617283.5),
            Row("cosine", None, 0.99987, "", None), Row("not run", None, None, "s", None, "≥ 3×", False)]
    assert as_markdown(rows).splitlines() == [
        "| what | reference | ours | times better | target | met |", "| --- | --- | --- | --- | --- | --- |",
        "| fast | 3 s | 250 ms | 12× | ≥ 10× | yes |", "| slow | 1.5 s | 3 s | 0.5× | ≥ 1× | no |",
        "| share | – | 87.7 % |  | ≥ 85 % | yes |", "| size | 1,234,567 MiB | 2 MiB | 617,284× |  |  |",
        "| cosine | – | 0.99987 |  |  |  |", "| not run | – | – |  | ≥ 3× | no |"]


def test_cases_run_in_turns_and_the_first_round_is_not_counted():
    order = []
    seconds = in_turns("", {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == ["a", "b"] * 3 and set(seconds) == {"a", "b"} and min(seconds.values()) >= 0


def hold(size):
    torch.ones(size, dtype=torch.uint8)


@pytest.mark.slow
def test_peak_memory_is_that_of_a_process_of_its_own():
    kept = torch.ones(4 * MEMORY, dtype=torch.uint8)  # in this process, which does not count
    little, much = peak_memory(hold, 1), peak_memory(hold, MEMORY)
    assert 0.9 * MEMORY < much - little < 1.2 * MEMORY and little < len(kept)
