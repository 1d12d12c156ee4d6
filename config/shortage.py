"""Resources of the machine that run out: files, shared memory, memory. Their errors blame whatever was done at the time."""
import re
from collections.abc import Iterator
from contextlib import contextmanager

from demo_sdtps.config.common import UserError

NO_SHARED_MEMORY = ("/dev/shm, through which the loading processes hand over images, is full; lower DATALOADER.NUM_WORKERS (0 "
                    "needs no shared memory) or SOLVER.IMS_PER_BATCH and TEST.IMS_PER_BATCH, or enlarge it (docker run "
                    "--shm-size=8g).")
NO_MEMORY = "There is not enough memory for this; lower SOLVER.IMS_PER_BATCH, TEST.IMS_PER_BATCH or INPUT's sizes."
SHORTAGES = {
    "Too many open files|received 0 items of ancdata":
        "Too many files are open at once for the limit of this shell or system (ulimit -n); raise it, for example by "
        "ulimit -n 4096, or lower DATALOADER.NUM_WORKERS.",
    r"shared memory.*No space left|killed by signal: Bus error": NO_SHARED_MEMORY,
    r"DataLoader worker .*(killed by signal: Killed|exited unexpectedly$)|Errno 12\]":
        "A loading process was killed or could not start, most likely for lack of memory; lower DATALOADER.NUM_WORKERS or "
        "SOLVER.IMS_PER_BATCH and TEST.IMS_PER_BATCH, set DATASETS.CACHE to no, or free some memory.",
    "^OutOfMemoryError:|can't allocate memory|not enough memory":
        NO_MEMORY,
}
"""What to say by the text of the error: torch wraps the errors of loading processes, and keeps only their texts."""


def shortage(error: BaseException | None) -> str | None:
    """The sentence on the resource whose lack raised `error`, or an error that it replaces; None for any other error."""
    while error:
        text = f"{type(error).__name__}: {error}"
        for pattern, sentence in SHORTAGES.items():
            if re.search(pattern, text, re.MULTILINE):
                return sentence
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def naming_shortages() -> Iterator[None]:
    """Inside, an error that a lack of files, shared memory or memory raises becomes a `UserError` that names it."""
    try:
        yield
    except Exception as error:
        if sentence := shortage(error):
            raise UserError(sentence) from error
        raise
