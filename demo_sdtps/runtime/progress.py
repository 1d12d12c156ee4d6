"""Progress bar of everything that takes more than two seconds."""

import os
import sys
from contextlib import suppress
from functools import partial

from tqdm import tqdm

COLUMNS = None
"""Width of a bar: the terminal's, but in one that tells 0, such as those of containers, in which tqdm would draw nothing."""
with suppress(OSError, ValueError):
    COLUMNS = None if os.get_terminal_size(sys.stderr.fileno()).columns else 80

progress = partial(
    tqdm,
    leave=False,
    disable=None if os.environ.get("RANK", "0") == "0" else True,
    ncols=COLUMNS,
)
"""tqdm that is removed at the end, and not shown without a terminal or in processes of torchrun other than rank 0."""
