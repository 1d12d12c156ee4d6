"""benchmarks/run.py: the command and its table."""

import json
import math

import pytest

from benchmarks import run as benchmark
from benchmarks.rows import Row, as_report


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("part", [name for name in benchmark.TOPICS if name != "model"])
def test_the_command_prints_and_writes_what_it_measured(command, tmp_path, part):
    output = tmp_path / "new" / "bench.json"
    words = (part, "--device", "cpu", "--quick", "--json", output)
    code, stdout, _ = command(benchmark.main, *words)
    assert code == 0
    record = json.loads(output.read_text())
    assert stdout.strip().endswith(as_report(record))  # after what an approximate search prints
    assert list(record["parts"]) == [part] and record["quick"]
    rows = [Row(**row) for rows in record["parts"].values() for row in rows]
    for row in rows:
        assert row.ours is None or math.isfinite(row.ours), row
        assert (row.met is None) == (not row.target), row
        if row.ratio is not None:
            ratio = row.reference / row.ours
            assert row.ratio == pytest.approx(1 / ratio if "per second" in row.what else ratio), row
