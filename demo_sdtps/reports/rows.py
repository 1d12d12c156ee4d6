"""Tables in Markdown, and those of benchmarks: rows of what was measured, command, machine and versions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """Row of the table; `reference` and `ours` in `unit`, None where not measured; `ratio` is how many times better ours is."""

    what: str
    reference: float | None
    ours: float | None
    unit: str
    ratio: float | None
    target: str = ""
    met: bool | None = None


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (headers, *rows)]
    return "\n".join([lines[0], "|---" * len(headers) + "|", *lines[1:]])


def benchmark_table(rows: Sequence[Row]) -> str:
    """The rows as a table, without the columns of targets where there are none."""
    width = 6 if any(row.target for row in rows) else 4
    lines = [("what", "reference", "ours", "times better", "target", "met")]
    for row in rows:
        times = (_with_unit(row.reference, row.unit), _with_unit(row.ours, row.unit))
        better = "" if row.ratio is None else f"{_digits(row.ratio)}×"
        met = {None: "", True: "yes", False: "no"}[row.met]
        lines.append((row.what, *times, better, row.target, met))
    headers, *cells = (line[:width] for line in lines)
    return markdown_table(headers, cells)


def _with_unit(value: float | None, unit: str) -> str:
    if unit == "s" and value is not None and value < 1:
        value, unit = 1000 * value, "ms"
    return "–" if value is None else f"{_digits(value)} {unit}".strip()


def _digits(value: float) -> str:
    """Three significant digits; five for numbers just below 1, such as cosines."""
    if 0.99 < value < 1:
        return f"{value:.5f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def headline(record: dict) -> str:
    """Command, commit (where git had one), machine and versions of a record."""
    what, where = record["machine"], record["machine"]["name"]
    if what["device"] == "cpu":
        half = "with" if what["bfloat16"] else "without"
        where = f"{what['cores']} cores, {what['cpu']}, {half} bfloat16 instructions"
    versions = [f"{name} {version}" for name, version in record["versions"].items() if version]
    changed = " with changes" if record["changed"] else ""
    revision = f" at commit {record['commit'][:10]}{changed}" if record["commit"] else ""
    return f"`{record['command']}`{revision} on {where}, {what['threads']} threads; {', '.join(versions)}."


def as_report(record: dict) -> str:
    """Record of --json as Markdown: command, machine and versions, and the table."""
    return f"{headline(record)}\n\n{benchmark_table([Row(**row) for rows in record['parts'].values() for row in rows])}"
