"""What a configuration key is, and the kinds of values that keys allow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from yacs.config import CfgNode


class Key(NamedTuple):
    """One key. `allowed` is a tuple of the possible values or a predicate; `allowed_text` explains it."""

    name: str
    default: object
    description: str
    allowed: tuple | Callable | None = None
    allowed_text: str = ""


@dataclass(frozen=True)
class Schema:
    """The keys of one kind of run, and `check`, which raises `UserError` for a combination of values that cannot run."""

    keys: tuple[Key, ...]
    check: Callable[[CfgNode], None]
    example: str  # a configuration of this kind

    @cached_property
    def by_name(self) -> dict[str, Key]:
        return {key.name: key for key in self.keys}


ON_OFF = ("on", "off")
YES_NO = ("yes", "no")
AMP = ("auto", "bf16", "fp16", "off")
LONGEST_SIDE, MOST_WORKERS, WIDEST = 4096, 256, 8192


def _three_numbers(value, least: float = -1e9) -> bool:
    """Whether there are three numbers, greater than `least`."""
    numbers = [number for number in value if type(number) in (int, float)]
    return len(value) == len(numbers) == 3 and all(least < number < 1e9 for number in numbers)


def between(least: float, most: float) -> tuple[Callable, str]:
    """The numbers from `least` to `most`."""
    return lambda value: least <= value <= most, f"from {least} to {most}"


POSITIVE = (lambda value: 0 < value < math.inf, "greater than 0")
NOT_NEGATIVE = (lambda value: 0 <= value < math.inf, "0 or greater")
WIDTH = (lambda value: 0 < value <= WIDEST, f"greater than 0, at most {WIDEST}")
RATIO = (lambda value: 0 < value <= 1, "in (0, 1]")
PROBABILITY = (lambda value: 0 <= value <= 1, "in [0, 1]")
BELOW_ONE = (lambda value: 0 <= value < 1, "in [0, 1)")
NUMBERS = (_three_numbers, "three numbers")
POSITIVE_NUMBERS = (lambda value: _three_numbers(value, least=0), "three positive numbers")
SIZE = (
    lambda value: (
        len(value) == 2 and all(type(side) is int and 0 < side <= LONGEST_SIDE for side in value)
    ),
    f"two whole numbers of pixels [vertical, horizontal], at most {LONGEST_SIDE}",
)
