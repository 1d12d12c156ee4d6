"""INPUT.RANGES: which values of own images with more than 8 bits become black and white (docs/own_data.md)."""

import math
import re
from typing import NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config.common import MODALITIES


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
    is_valid = 0 < high - low < math.inf and not (of_image and (low < 0 or high > 100))
    return (match[1], Range(low, high, of_image)) if is_valid else None


def read_ranges(cfg: CfgNode) -> dict[str, Range]:
    """The range of each modality."""
    return dict.fromkeys(MODALITIES, PERCENTILES) | dict(
        filter(None, map(parse_range, cfg.INPUT.RANGES))
    )
