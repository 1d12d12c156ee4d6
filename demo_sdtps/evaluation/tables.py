"""Records, tables and captions of evaluations."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS
from demo_sdtps.evaluation.metrics import Ranking
from demo_sdtps.evaluation.protocol import CrossModal, TestData
from demo_sdtps.modeling.demo import missing_modalities
from demo_sdtps.runtime.files import read_json

METRICS, RECORD = "metrics.json", "run.json"
"""Names of the files in OUTPUT_DIR with a record of each epoch, and with seed, commit and versions."""
RANKS = (1, 5, 10)
MEASURES = ("mAP", *(f"Rank-{k}" for k in RANKS))
NAME_WIDTH, CASE_WIDTH = 16, 18
COUNTS = {2: "two", 6: "six"}  # cases of missing modalities of two and of three
PATTERN_NAMES = dict(zip(RETURN_PATTERNS, ("1 original", "2 enhanced", "3 both"), strict=True))

Record = Mapping[str, Mapping[str, float]]
"""Measures by return pattern, as metrics.json has them: {"1": {"mAP": …, "Rank-1": …, …}, "2": …, "3": …}, in [0, 1]."""


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's metrics.json, one for each epoch; [] without such a file."""
    return read_json(folder / METRICS, [{"epoch": int}], [])


def read_run(folder: Path) -> dict[str, Any]:
    """The record of a run's run.json; {} without such a file."""
    return read_json(folder / RECORD, dict, {})


def evaluated_records(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of epochs after which the model was evaluated."""
    return [record for record in records if record.get("patterns")]


def reid_record(rankings: Mapping[int, Ranking]) -> dict[str, dict[str, float]]:
    """The record of the rankings of each return pattern."""
    return {
        str(pattern): {"mAP": ranking.mAP}
        | {f"Rank-{k}": ranking.rank(k) for k in RANKS}
        | {"mINP": ranking.mINP}
        for pattern, ranking in rankings.items()
    }


def reid_table(record: Record, untrained: Record | None = None) -> str:
    """A record in percent, one row per return pattern; with `untrained`, that record's mAP in the last column."""
    rows = {
        PATTERN_NAMES[int(pattern)]: {**row}
        | ({"mAP untrained": untrained[pattern]["mAP"]} if untrained else {})
        for pattern, row in record.items()
    }
    return percent_table(rows, "return pattern")


def missing_table(records: Mapping[str, Record]) -> str:
    """Records by case of missing modalities as one table in percent, with the rows of `missing_rows`."""
    rows = {
        f"{name:{CASE_WIDTH}}{PATTERN_NAMES[int(pattern)]}": row
        for name, record in missing_rows(records).items()
        for pattern, row in record.items()
    }
    return percent_table(rows, f"{'missing':{CASE_WIDTH}}return pattern")


def missing_rows(records: Mapping[str, Record]) -> dict[str, Record]:
    """Records by case of missing modalities as tables name it ('rn' is 'rn: RGB, NI'), and the mean of incomplete ones."""
    rows, incomplete = {}, []
    for case, record in records.items():
        missing = missing_names(case)
        rows[f"{case}: {', '.join(missing)}" if missing else case] = record
        incomplete += [record] if missing else []
    if incomplete:  # a model of one modality has none
        rows[f"mean of the {COUNTS[len(incomplete)]}"] = {
            pattern: {
                name: sum(record[pattern][name] for record in incomplete) / len(incomplete)
                for name in row
            }
            for pattern, row in incomplete[0].items()
        }
    return rows


def cross_modal_tables(cfg: CfgNode, result: CrossModal) -> list[str]:
    """The lines of a table in percent for each measure."""
    lines = [
        "modalities of the query (rows) and of the gallery (columns), incomplete ones by TEST.CROSS_MODAL_DISTANCE "
        f"{cfg.TEST.CROSS_MODAL_DISTANCE}, return pattern {PATTERN_NAMES[cfg.TEST.RETURN_PATTERN]}"
    ]
    for measure, rows in result.items():
        lines += ["", percent_table(rows, measure)]
    return lines


def percent_table(
    rows: Mapping[str, Mapping[str, float | None]], corner: str = "", scale: int = 100
) -> str:
    """Values by row and column, each times `scale` with one decimal, "-" for None."""
    columns = list(next(iter(rows.values())))
    width = max(NAME_WIDTH, *(2 + len(name) for name in (corner, *rows)))
    lines = [(corner, columns)]
    for name, row in rows.items():
        values = (row[column] for column in columns)
        cells = ["-" if value is None else f"{scale * value:.1f}" for value in values]
        lines.append((name, cells))
    widths = [2 + max(5, len(column)) for column in columns]
    return "\n".join(
        name.ljust(width) + "".join(map(str.rjust, cells, widths)) for name, cells in lines
    )


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (headers, *rows)]
    return "\n".join([lines[0], "|---" * len(headers) + "|", *lines[1:]])


def data_caption(cfg: CfgNode, data: TestData) -> str:
    """The name and place of the data, and the number of its queries."""
    matched = "" if data.matched == len(data.query) else f", {data.matched} with a match"
    return f"{cfg.DATASETS.NAMES} in {cfg.DATASETS.ROOT_DIR}, {len(data.query)} queries{matched}"


def reid_caption(cfg: CfgNode, data: TestData) -> str:
    """One line on what is evaluated: data, queries, weights and options."""
    return f"{data_caption(cfg, data)}, {cfg.TEST.WEIGHT}{options(cfg)}, in percent"


def options(cfg: CfgNode) -> str:
    """The options of TEST that are not at their defaults, each after a comma."""
    missing = [] if cfg.TEST.MISS == "all" else missing_names(cfg.TEST.MISS)
    notes = (
        (f"without {' and '.join(missing)}", missing),
        ("re-ranked", cfg.TEST.RE_RANKING == "yes"),
        ("cameras unknown", cfg.TEST.UNKNOWN_CAMERAS),
        (f"TEST.AMP {cfg.TEST.AMP}", cfg.TEST.AMP != "off"),
        ("features after the neck", cfg.TEST.NECK_FEAT == "after"),
        ("features not normalised", cfg.TEST.FEAT_NORM == "no" and cfg.TEST.RE_RANKING == "no"),
    )
    return "".join(f", {text}" for text, is_on in notes if is_on)


def missing_names(case: str) -> list[str]:
    """The missing modalities of a case, RGB first."""
    return [name for name in MODALITIES if name in missing_modalities(case)]
