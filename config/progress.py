"""The progress bar of everything that takes more than two seconds."""
import os
from functools import partial

from tqdm import tqdm

progress = partial(tqdm, leave=False, disable=None if os.environ.get("RANK", "0") == "0" else True)
"""tqdm that leaves nothing behind, and shows nothing where the output is no terminal: a log file has lines instead. Of several
processes, which torchrun numbers, the first alone shows it."""
