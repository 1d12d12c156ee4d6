"""The result of a study, study.json: what the tables read of the runs, a line for each."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from demo_sdtps.runtime.files import atomic_write
from studies.report import COMPLETE


def measurement(name: str, content: Any) -> dict[str, Any]:
    """What the tables read of a JSON file of MEASURED (runs.py): mAP by case and return pattern, mAP by the modalities of query
    and gallery, or the recall of the person's patches."""
    if name == "missing":
        return {
            name: {
                case: {pattern: metrics["mAP"] for pattern, metrics in patterns.items()}
                for case, patterns in content["cases"].items()
            }
        }
    if name == "selection":
        recall = last_recall(content)
        return {} if recall is None else {"recall": recall}
    return {name: content["cross_modal"]["mAP"]}


def last_recall(selection: Mapping[str, Any]) -> float | None:
    """The share of the person's patches that the last stage of slimming keeps, or else SDTPS, mean over the modalities of
    complete triplets; None where no masks say which these are."""
    stages = (selection.get("stages") or {"": selection["cases"]}).values()
    rows = [cases[COMPLETE] for cases in stages if COMPLETE in cases][-1:]
    values = [
        row["recall"] for by_modality in rows for row in by_modality.values() if "recall" in row
    ]
    return mean(values) if values else None


def curve(records: Sequence[Mapping[str, Any]], pattern: int) -> dict[int, float]:
    """mAP by epoch."""
    return {record["epoch"]: record["patterns"][str(pattern)]["mAP"] for record in records}


def result_json(content: Any, levels: int = 4, indent: str = "\n") -> str:
    """JSON with a line for each entry, down to the runs of a result, which take one each."""
    if not levels or not content or not isinstance(content, (dict, list)):
        return json.dumps(content)
    entries = [
        f"{json.dumps(key)}: {result_json(value, levels - 1, indent + ' ')}"
        for key, value in (content.items() if isinstance(content, dict) else ())
    ] or [result_json(value, levels - 1, indent + " ") for value in content]
    start, end = "{}" if isinstance(content, dict) else "[]"
    return f"{start}{indent} {f',{indent} '.join(entries)}{indent}{end}"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(result_json(result) + "\n", encoding="utf-8")
