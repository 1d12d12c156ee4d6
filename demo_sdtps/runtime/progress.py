"""Progress bar of everything that takes more than two seconds."""

import os
from functools import partial

from tqdm import tqdm

progress = partial(tqdm, leave=False, disable=None if os.environ.get("RANK", "0") == "0" else True)
"""tqdm that is removed at the end, and not shown without a terminal or in processes of torchrun other than rank 0."""
