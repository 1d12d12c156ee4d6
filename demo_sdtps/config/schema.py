"""What a configuration key is, and the kinds of values that keys allow."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config.common import MODALITIES

NUMBER = r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?"
ENTRY = re.compile(rf"({'|'.join(MODALITIES)})=({NUMBER})(%?):({NUMBER})(%?)")
EXAMPLE = "TI=27315:31315"


class Range(NamedTuple):
    """The values that become 0 and 255; with `of_image` the percentiles of each image that have them."""

    low: float
    high: float
    of_image: bool = False


PERCENTILES = Range(1, 99, of_image=True)
"""Of a modality without an entry: the hottest pixel of an image does not darken the others."""


def parse_range(entry: object) -> tuple[str, Range] | None:
    """Modality and range of an entry MODALITY=LOW:HIGH or MODALITY=LOW%:HIGH%; None for another text."""
    match = ENTRY.fullmatch(entry) if isinstance(entry, str) else None
    if not match or match[3] != match[5]:
        return None
    low, high, of_image = float(match[2]), float(match[4]), bool(match[3])
    is_valid = low < high and not (of_image and (low < 0 or high > 100))
    return (match[1], Range(low, high, of_image)) if is_valid else None


def read_ranges(cfg: CfgNode) -> dict[str, Range]:
    """The range of each modality."""
    return dict.fromkeys(MODALITIES, PERCENTILES) | dict(
        filter(None, map(parse_range, cfg.INPUT.RANGES))
    )


class Key(NamedTuple):
    """One key. `allowed` is a tuple of the possible values or a predicate; `allowed_text` explains it."""

    name: str
    default: object
    description: str
    allowed: tuple | Callable | None = None
    allowed_text: str = ""


def constant_key(name: str, value: object, description: str, why: str) -> Key:
    """A key that has a single value."""
    return Key(name, value, description, (value,), why)


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
