"""Progress bar of everything that takes more than two seconds."""

import os
import sys
from contextlib import suppress
from functools import partial

from tqdm import tqdm

SIZE: dict[str, int] = {}
"""Of a terminal that tells 0, as those of containers, in which tqdm would draw nothing."""
with suppress(OSError, ValueError):
    if 0 in os.get_terminal_size(sys.stderr.fileno()):
        SIZE = {"ncols": 80, "nrows": 24}

progress = partial(
    tqdm, leave=False, disable=None if os.environ.get("RANK", "0") == "0" else True, **SIZE
)
"""tqdm that is removed at the end, and not shown without a terminal or in processes of torchrun other than rank 0."""
