"""What a configuration key is, and the values that keys allow, among them INPUT.RANGES, which values of own images with more
than 8 bits become black and white (docs/own_data.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config.common import MODALITIES


@dataclass(frozen=True)
class Values:
    """The values that `allows` accepts, and `text`, which says so after "it must be"."""

    allows: Callable[[Any], bool]
    text: str


class Key(NamedTuple):
    """One key: its full name, its default, whose type its values have, its effect in one line, and the values that it allows:
    a tuple of them, a condition, or all."""

    name: str
    default: object
    description: str
    allowed: tuple | Values | None = None


@dataclass(frozen=True)
class Schema:
    """The keys of one kind of run, and `check`, which raises `UserError` for a combination of values that cannot run."""

    keys: tuple[Key, ...]
    check: Callable[[CfgNode], None]
    example: str  # a configuration of this kind

    @cached_property
    def by_name(self) -> dict[str, Key]:
        return {key.name: key for key in self.keys}


class Range(NamedTuple):
    """The values that become 0 and 255; with `of_image` the percentiles of each image that have them."""

    low: float
    high: float
    of_image: bool = False


PERCENTILES = Range(1, 99, of_image=True)
"""Of a modality without an entry: the hottest pixel of an image does not darken the others."""
NUMBER = r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?"
ENTRY = re.compile(rf"({'|'.join(MODALITIES)})=({NUMBER})(%?):({NUMBER})(%?)")
EXAMPLE = "TI=27315:31315"


def parse_range(entry: object) -> tuple[str, Range] | None:
    """Modality and range of an entry MODALITY=LOW:HIGH or MODALITY=LOW%:HIGH%; None for another text."""
    match = ENTRY.fullmatch(str(entry))
    if not match or match[3] != match[5]:
        return None
    low, high, of_image = float(match[2]), float(match[4]), bool(match[3])
    is_valid = low < high and not (of_image and (low < 0 or high > 100))
    return (match[1], Range(low, high, of_image)) if is_valid else None


def parse_ranges(entries: list) -> dict[str, Range]:
    """The range of each modality that has a valid entry."""
    return dict(filter(None, map(parse_range, entries)))


def read_ranges(cfg: CfgNode) -> dict[str, Range]:
    """The range of each modality."""
    return dict.fromkeys(MODALITIES, PERCENTILES) | parse_ranges(cfg.INPUT.RANGES)


def between(least: float, most: float) -> Values:
    """The numbers from `least` to `most`."""
    return Values(lambda value: least <= value <= most, f"from {least} to {most}")


def list_of(allows: Callable[[Any], bool], text: str, length: int | None = None) -> Values:
    """The lists of `length` numbers, or of any length, that are each allowed."""
    return Values(
        lambda value: (
            len(value) == (length or len(value))
            and all(type(number) in (int, float) and allows(number) for number in value)
        ),
        text,
    )


YES_NO = ("yes", "no")
AMP = ("auto", "bf16", "fp16", "off")
LONGEST_SIDE, WIDEST = 4096, 8192
POSITIVE = Values(lambda value: 0 < value < math.inf, "greater than 0")
NOT_NEGATIVE = Values(lambda value: 0 <= value < math.inf, "0 or greater")
WIDTH = Values(lambda value: 0 < value <= WIDEST, f"greater than 0, at most {WIDEST}")
RATIO = Values(lambda value: 0 < value <= 1, "in (0, 1]")
PROBABILITY = Values(lambda value: 0 <= value <= 1, "in [0, 1]")
BELOW_ONE = Values(lambda value: 0 <= value < 1, "in [0, 1)")
NUMBERS = list_of(math.isfinite, "three numbers", 3)
POSITIVE_NUMBERS = list_of(POSITIVE.allows, "three positive numbers", 3)
SIZE = list_of(
    lambda side: type(side) is int and 0 < side <= LONGEST_SIDE,
    f"two whole numbers of pixels [vertical, horizontal], at most {LONGEST_SIDE}",
    2,
)
