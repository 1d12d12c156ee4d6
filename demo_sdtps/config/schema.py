"""What a configuration key is, and the values that keys allow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from yacs.config import CfgNode


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
