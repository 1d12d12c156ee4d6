"""Names that every package shares, and `UserError`."""
import difflib
import re
from collections.abc import Iterable

MODALITIES = ("RGB", "NI", "TI")  # red-green-blue, near infrared, thermal infrared; always in this order (docs/method.md)

RETURN_PATTERNS = (1, 2, 3)  # features at evaluation: 1 original, 2 enhanced, 3 both (docs/method.md)

MISSING_CASES = ("r", "n", "t", "rn", "rt", "nt")  # missing modalities of a triplet, by first letters (TEST.MISS)

CLIP_BACKBONE = "ViT-B-16"
"""MODEL.TRANSFORMER_TYPE of CLIP's image encoder; other values are timm's names (config/backbones.py)."""

HUB, RANDOM_WEIGHTS = "hub", ("", "none")
"""Values of MODEL.PRETRAIN_PATH_T that are no file: timm downloads the weights; the weights are random, '' with a warning."""

SDTPS_ARGUMENTS = ("sparse_ratio", "aggr_ratio", "use_gumbel", "gumbel_tau", "beta", "gumbel_select")
"""Arguments of MultiModalSDTPS that have a key: MODEL.SDTPS_ and the name in capitals."""


class UserError(Exception):
    """A mistake in the user's configuration, data or weights: one sentence that names the thing, what is wrong with it and
    what to do. Commands print it without a stack trace and exit with code 2."""


def nearest(value: object, known: Iterable[object]) -> str:
    """"; the nearest is 'X'" for the end of a sentence, or '' where none is near."""
    near = difflib.get_close_matches(str(value), [str(choice) for choice in known], n=1)
    return f"; the nearest is {near[0]!r}" if near else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python or torch is the lack of memory of the CPU or a GPU; torch has no type for the CPU's."""
    return isinstance(error, MemoryError) or bool(re.search("out of memory|can't allocate memory", str(error)))
