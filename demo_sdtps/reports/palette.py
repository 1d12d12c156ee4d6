"""The colours of all pictures and pages, each with one meaning. Those of a group differ for colour-blind readers too."""

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS

PATTERNS = dict(zip(RETURN_PATTERNS, ("#56b4e9", "#e69f00", "#0072b2"), strict=True))
MODALITY = dict(zip(MODALITIES, ("#882255", "#999999", "#ddcc77"), strict=True))
MATCH, WRONG = "#009e73", "#d55e00"
SERIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7010e0")
"""Of anything else: identities, variants, runs."""
# of what has no kind, of queries, and of a cell without a number
NEUTRAL, TEXT, EMPTY = ("#64748b", "#000000", "#eeeeee")
# cover of a dropped patch: a colour that is visible on a black night image too
DROPPED, OPACITY = ((96, 88, 148), 0.75)
HEAT, SHARES = "viridis", "Blues"  # colour maps: of values over an image, and of percentages

AS_DATA = {
    "patterns": list(PATTERNS.values()),
    "match": MATCH,
    "wrong": WRONG,
    "series": SERIES,
    "plain": NEUTRAL,
    "dropped": [*DROPPED, OPACITY],
}
"""What the pages take of it."""
