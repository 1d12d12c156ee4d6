"""What each configuration key changes, observed in the smallest thing that it changes.

A function here builds or runs that thing with a configuration and returns what one sees of the key; `@effect` says what
that must be for (at least) two of the key's values. tests/config/test_config_keys.py walks all keys.
"""

from effects import data, evaluation, losses, model, optimiser, runs, slimming
from effects.base import EFFECTS

__all__ = ["EFFECTS", "data", "evaluation", "losses", "model", "optimiser", "runs", "slimming"]
