"""The reader of labels: identity, camera and others of own images, in their names or in a table (docs/own_data.md)."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import UserError

INVISIBLE = re.compile("[\x00-\x08\x0e-\x1f\x7f\u200b\u2060\ufeff]")
"""Characters without a width, which would make another label of one that looks the same."""


def compile_pattern(cfg: CfgNode) -> re.Pattern:
    """DATASETS.PATTERN, which must have the group identity."""
    try:
        pattern = re.compile(cfg.DATASETS.PATTERN)
    except re.error as error:
        raise UserError(
            f"DATASETS.PATTERN {cfg.DATASETS.PATTERN!r} is no regular expression ({error}); correct it (docs/own_data.md)."
        ) from None
    if "identity" not in pattern.groupindex:
        raise UserError(
            f"DATASETS.PATTERN {cfg.DATASETS.PATTERN!r} has no group identity; write one such as "
            "(?P<identity>\\d+) (docs/own_data.md)."
        )
    return pattern


def name_labels(pattern: re.Pattern, name: str, file: str) -> dict[str, str]:
    """Texts of the named groups of `pattern` that are not empty in `name`, the path of `file` below the folder of its modality;
    none where the pattern is not in it. Raises `UserError` where a text is a piece of a number, as camera 1 of 12, and where
    the names of folders have other labels than that of the file."""
    match = pattern.search(name)
    if not match:
        return {}
    last = pattern.search(name, name.rfind("/") + 1)
    if last and last.groupdict() != match.groupdict():
        raise UserError(
            f"The folders of the image {file} match the pattern {pattern.pattern!r}, and its own name does with other labels; "
            "begin the pattern with ^ for the labels of folders, or end it with [^/]*$ for those of names."
        )
    labels = {group: text for group, text in match.groupdict().items() if text}
    for group, text in labels.items():
        if _is_cut(match, *match.span(group)):
            raise UserError(
                f"The {group} {text} is a piece of a number in the name of the image {file} by the pattern "
                f"{pattern.pattern!r}; let it take all digits (\\d+), or put the others into a group of their own."
            )
    return labels


def _is_cut(match: re.Match, start: int, end: int) -> bool:
    """Whether more of a number stands beside the text from `start` to `end`: digits in no group, or the first minus."""
    name, spans = match.string, [span for span in match.regs[1:] if span[0] < span[1]]
    begins = not name[start].isdecimal() or any(span[1] == start for span in spans)
    ends = not name[end - 1].isdecimal() or any(span[0] == end for span in spans)
    return not (
        (begins or not re.search(r"(\d|(^|/)-)$", name[:start]))
        and (ends or not name[end : end + 1].isdecimal())
    )


def read_table(table: Path) -> tuple[Sequence[str], dict[int, dict[str, str]]]:
    """Columns, and lines by their numbers in the file, without the blanks around each cell, "" for one that a line lacks."""
    try:
        with open(table, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="", strict=True)
            columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            if repeated := next((name for name in columns if columns.count(name) > 1), None):
                raise UserError(f"{table} has two columns {repeated}; rename or remove one.")
            lines = {}
            for line in reader:
                if any(cell.strip() for cell in line.pop(None, ())):
                    raise UserError(
                        f"Line {reader.line_num} of {table} has more cells than the table has columns; put a text with a comma "
                        "into quotation marks."
                    )
                if hidden := next(filter(None, map(INVISIBLE.search, line.values())), None):
                    raise UserError(
                        f"Line {reader.line_num} of {table} has an invisible character in {hidden.string!r}; remove it."
                    )
                lines[reader.line_num] = {name: cell.strip() for name, cell in line.items()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{table} is no table in UTF-8 ({error}); save it as CSV, UTF-8 (docs/own_data.md)."
        ) from None
    return columns, lines


def number_labels(labels: Iterable[str]) -> dict[str, int]:
    """A number for each label: its own where all are different whole numbers, else its place in the order of all."""
    distinct = sorted(set(labels))
    numbers = {int(label) for label in distinct if label.isdecimal() and len(label) < 19}
    if len(numbers) == len(distinct):
        return {label: int(label) for label in distinct}
    return {label: place for place, label in enumerate(distinct)}
