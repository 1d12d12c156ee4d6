"""Names that every package shares, and lines of output."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

# red-green-blue, near infrared, thermal infrared; always in this order (docs/method.md)
MODALITIES = ("RGB", "NI", "TI")
RETURN_PATTERNS = (1, 2, 3)  # features at evaluation: 1 original, 2 enhanced, 3 both
# of triplets that lack modalities (TEST.CROSS_MODAL_DISTANCE), and which they lack, by first letters (TEST.MISS)
CROSS_MODAL_DISTANCES = ("all", "shared")
MISSING_CASES = ("r", "n", "t", "rn", "rt", "nt")

COMMAND = "demo-sdtps"  # of an installed package (demo_sdtps/commands)
EMBEDDING_METHODS = {"pca": "PCA", "tsne": "t-SNE"}

# of demo-sdtps search: hits of a query, distances
TOP = 10
SQUARED = "squared Euclidean distance of L2-normalised features (0 to 4), by TEST.CROSS_MODAL_DISTANCE as in the evaluation"
RERANKED = "k-reciprocal distance of re-ranking (0 to 1)"

# MODEL.TRANSFORMER_TYPE of CLIP's image encoder; other values are timm's names (modeling/backbones.py)
CLIP_BACKBONE = "ViT-B-16"
# the value of MODEL.PRETRAIN_PATH_T by which timm downloads the weights
HUB = "hub"
SCRATCH = "RGBNT201/DeMo_SDTPS_tiny trains without any download"
# arguments of MultiModalSDTPS that have a key: MODEL.SDTPS_ and the name in capitals
SDTPS_SETTINGS = ("sparse_ratio", "aggr_ratio", "use_gumbel", "gumbel_tau", "beta", "gumbel_select")

INVISIBLE = re.compile(
    "[\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
)
"""Characters without a width: soft hyphens, marks of direction and of the order of bytes."""

# keys that name paths of the machine of the training, which `Extractor.save_pretrained` leaves out
UNSHARED = (
    *("OUTPUT_DIR", "DATASETS.ROOT_DIR", "TEST.WEIGHT"),
    *("MODEL.PRETRAIN_PATH_T", "MODEL.TEACHER"),
)
# keys of MODEL on which features do not depend
WITHOUT_EFFECT: tuple[str, ...] = ("MODEL.DEVICE", "MODEL.DEVICE_ID", "MODEL.COMPILE", *UNSHARED)
WITHOUT_EFFECT += ("MODEL.SIE_UNKNOWN",)  # of training alone


def print_lines(*lines: object) -> None:
    """Print each on a line of stdout, at once."""
    print(*lines, sep="\n", flush=True)


def plain(text: str) -> str:
    """A text as a person sees it: without INVISIBLE characters, in Unicode's form NFC, with single blanks between words."""
    return " ".join(unicodedata.normalize("NFC", INVISIBLE.sub("", text)).split())


def warn_of_alike(what: str, labels: Iterable[str]) -> None:
    """Warn of labels that are one number, such as 7, 07 and 7.0."""
    alike = defaultdict(list)
    for label in sorted({*labels}):
        if re.fullmatch(r"-?\d+(\.\d+)?", label):
            alike[Decimal(label)].append(label)
    if groups := [" and ".join(group) for group in alike.values() if len(group) > 1]:
        text = "%s %s: one number, but different labels; write them alike if they are one"
        logging.getLogger(__name__).warning(text, what, ", ".join(groups[:9]))


def count_text(number: int, noun: str) -> str:
    """A number and what it counts: "1 shard", "2 shards"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
