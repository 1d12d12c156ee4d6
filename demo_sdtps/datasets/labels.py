"""The reader of labels: identity, camera and others of own images, in their names or in a table (docs/own_data.md)."""

import csv
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError

INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
"""Characters without a width, which would make another label of one that looks the same."""


def compile_pattern(cfg: CfgNode) -> re.Pattern:
    """DATASETS.PATTERN, which must have the group identity."""
    try:
        pattern = re.compile(cfg.DATASETS.PATTERN)
        pattern.groupindex["identity"]
    except (re.error, KeyError) as error:
        raise UserError(
            f"DATASETS.PATTERN {cfg.DATASETS.PATTERN!r} is no regular expression with a group identity ({error}); write one "
            "such as (?P<identity>\\d+) (docs/own_data.md)."
        ) from None
    return pattern


def name_labels(pattern: re.Pattern, name: str) -> dict[str, str]:
    """Texts of the named groups of `pattern` that are not empty in `name`, the path of an image below the folder of its
    modality; none where the pattern is not in it. Raises `UserError` where a text is a piece of a number, as camera 1 of 12,
    and where the names of folders have other labels than that of the file."""
    match = pattern.search(name)
    if not match:
        return {}
    last = pattern.search(name, name.rfind("/") + 1)
    if last and last.groupdict() != match.groupdict():
        raise UserError(
            f"The folders of the image {name} match the pattern {pattern.pattern!r}, and its own name does with other labels; "
            "begin the pattern with ^ for the labels of folders, or end it with [^/]*$ for those of names."
        )
    labels = {group: text for group, text in match.groupdict().items() if text}
    edges = [edge for span in match.regs[1:] for edge in span]
    for group, text in labels.items():
        start = match.start(group)
        # where two groups meet, they part a number on purpose
        alone = [edge for edge in match.span(group) if edges.count(edge) == 1]
        is_cut = any(re.fullmatch(r"\d\d", name[edge - 1 : edge + 1]) for edge in alone)
        if is_cut or re.search("(^|/)-$", name[:start]):
            raise UserError(
                f"The {group} {text} is a piece of a number in the name of the image {name} by the pattern "
                f"{pattern.pattern!r}; let it take all digits (\\d+), or put the others into a group of their own."
            )
    return labels


def read_table(table: Path) -> tuple[list[str], dict[int, dict[str, str]]]:
    """Columns, and lines by their numbers in the file; "" for a cell that a line lacks. Labels, which are all cells but the
    paths of images, are in Unicode's form NFC with single spaces between words."""
    lines = {}
    try:
        with open(table, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="", restkey="", strict=True)
            columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            for line in reader:
                lines[reader.line_num] = line
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{table} is no table in UTF-8 ({error}); save it as CSV, UTF-8 (docs/own_data.md)."
        ) from None
    for number, line in lines.items():
        for name in columns:
            line[name] = clean_text(line[name], is_path=name.upper() in MODALITIES)
            if "" in line or INVISIBLE.search(line[name]):
                raise UserError(
                    f"Line {number} of {table} has an invisible character in {line[name]!r}, or more cells than the table has "
                    "columns; remove it, or put a text with a comma into quotation marks."
                )
    return columns, lines


def clean_text(text: str, is_path: bool) -> str:
    """A path without the blanks around it; a label in Unicode's form NFC with single spaces, so that labels that look the same
    are the same."""
    return text.strip() if is_path else " ".join(unicodedata.normalize("NFC", text).split())


def number_labels(labels: Iterable[str]) -> dict[str, int]:
    """A number for each label: its own where all are different whole numbers, else its place in the order of all."""
    distinct = sorted(set(labels))
    numbers = {int(label) for label in distinct if label.isdecimal() and len(label) < 19}
    if len(numbers) == len(distinct):
        return {label: int(label) for label in distinct}
    return {label: place for place, label in enumerate(distinct)}
