"""metrics.json of a run, checked: it may be edited, or of another program."""
import sys
from pathlib import Path
from typing import Any

from demo_sdtps.config import RETURN_PATTERNS, UserError
from demo_sdtps.config.files import read_json
from demo_sdtps.engine.evaluation.reports import RANKS
from demo_sdtps.engine.run.output import METRICS

MEASURES = ("mAP", *(f"Rank-{k}" for k in RANKS))


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of re-identification in a run's metrics.json; [] without the file.

    Raises `UserError` for a file that cannot be read, and a record without a column or with a number that is none.
    """
    path = folder / METRICS
    if not path.exists():
        return []
    records = read_json(path)
    problem = None if isinstance(records, list) else "it is no list of records"
    for number, record in enumerate(records if isinstance(records, list) else (), start=1):
        if missing := _missing(record):
            problem = f"its record {number} has no {missing}, or one that is no number"
            break
    if problem:
        raise UserError(f"{path} is not as training writes it ({problem}); restore the file, or train again.")
    return records


def evaluated(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of epochs after which the model was evaluated."""
    return [record for record in records if "patterns" in record]


def _missing(record: object) -> str | None:
    """The first column that a record lacks, or whose value is no finite number; None for none."""
    if not isinstance(record, dict) or type(record.get("epoch")) is not int or not _is_number(record["epoch"]):
        return "epoch"
    # The untrained model (epoch 0) has no loss.
    columns: list[tuple[str, object]] = [(name, record.get(name)) for name in ("loss", "accuracy") if "loss" in record]
    if "patterns" in record:
        for pattern in map(str, RETURN_PATTERNS):
            row = record["patterns"].get(pattern) if isinstance(record["patterns"], dict) else None
            columns += [(f"{name} of pattern {pattern}", row.get(name) if isinstance(row, dict) else None) for name in MEASURES]
    return next((name for name, value in columns if not _is_number(value)), None)


def _is_number(value: object) -> bool:
    """Whether a value of JSON is a finite number that a plot can show."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
