"""The result of a study, a JSON file: what the tables read of the runs, a line for each, or for each rate of a choice."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from demo_sdtps.config import UserError
from demo_sdtps.evaluation.extraction import CASES
from demo_sdtps.evaluation.selection import COMPLETE
from demo_sdtps.modeling.checkpoints.records import ANY, MEASURED
from demo_sdtps.runtime.files import atomic_write, read_json

EVALUATION = "evaluation"
FORM = {
    "title": str,
    "patterns": [int],
    "variants": [{"name": str, "runs": {ANY: {"patterns": (None, MEASURED)}}}],
}
INCOMPLETE = [case for case in CASES if case != COMPLETE]


def measurement(name: str, content: Any) -> dict[str, Any]:
    """What the tables read of a JSON file of `steps` (runs.py): metrics by return pattern, mAP by case and return pattern, mAP
    by the modalities of query and gallery, or the recall of the object's patches."""
    if name.startswith(EVALUATION):
        return {"patterns": next(iter(content["cases"].values()))}
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
    if "cross_modal" in content:
        return {name: content["cross_modal"]["mAP"]}
    return {name: content}


def last_recall(selection: Mapping[str, Any]) -> float | None:
    """The share of the person's patches that the last stage of slimming keeps, or else SDTPS, mean over the modalities of
    complete triplets; None where no masks say which these are."""
    *_, last = (selection.get("stages") or {"": selection["cases"]}).values()
    rows = last.get(COMPLETE, {}).values()
    values = [row["recall"] for row in rows if "recall" in row]
    return mean(values) if values else None


def result_json(content: Any, levels: int = 4, indent: str = "\n") -> str:
    """JSON with a line for each entry down to `levels`, and for each that is deeper one with all of its own."""
    if not levels or not content or not isinstance(content, (dict, list)):
        return json.dumps(content)
    entries = [
        f"{json.dumps(key)}: {result_json(value, levels - 1, indent + ' ')}"
        for key, value in (content.items() if isinstance(content, dict) else ())
    ] or [result_json(value, levels - 1, indent + " ") for value in content]
    start, end = "{}" if isinstance(content, dict) else "[]"
    return f"{start}{indent} {f',{indent} '.join(entries)}{indent}{end}"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    is_choice = any("family" in variant for variant in result["variants"])
    with atomic_write(path) as temporary:
        text = result_json(result, levels=2 if is_choice else 4)
        temporary.write_text(text + "\n", encoding="utf-8")


def read_result(path: Path) -> dict[str, Any]:
    """Content of the result of a study."""
    result = read_json(path, FORM)
    if result is None:
        raise UserError(
            f"{path} is no result of demo-sdtps study, such as docs/results/slimming.json; give another --json."
        )
    return result


def values_by_seed(
    variant: Mapping[str, Any], key: str, value_of: Callable[[Any], float]
) -> dict[str, float]:
    """In percent what `value_of` says of the entry `key` of each run that has one."""
    return {seed: 100 * value_of(run[key]) for seed, run in variant["runs"].items() if key in run}


def final_metric(variant: Mapping[str, Any], pattern: int, metric: str) -> dict[str, float]:
    """A metric in percent after the last epoch, by seed, of the runs that finished."""
    return values_by_seed(variant, "patterns", lambda patterns: patterns[str(pattern)][metric])


def missing_maps(variant: Mapping[str, Any], pattern: int) -> dict[str, float]:
    """mAP in percent by seed, mean over the cases of missing modalities."""
    return values_by_seed(
        variant, "missing", lambda cases: mean(cases[case][str(pattern)] for case in INCOMPLETE)
    )


def cross_modal_maps(variant: Mapping[str, Any], how: str, is_common: bool) -> dict[str, float]:
    """mAP in percent by seed, mean over the cells of unequal sets with, or without, a common modality."""

    def mean_cell(matrix: dict[str, dict[str, float]]) -> float:
        return mean(
            value
            for query, row in matrix.items()
            for gallery, value in row.items()
            if query != gallery and bool({*query} & {*gallery}) is is_common
        )

    return values_by_seed(variant, f"cross_modal_{how}", mean_cell)
