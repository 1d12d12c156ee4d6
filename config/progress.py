"""The progress bar of everything that takes more than two seconds."""
from functools import partial

from tqdm import tqdm

progress = partial(tqdm, leave=False, disable=None)
"""tqdm that leaves nothing behind, and shows nothing where the output is no terminal: a log file has lines instead."""
