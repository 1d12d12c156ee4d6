"""train_net.py with the decision mask as the known implementation applies it: (1 - D)·1e10 subtracted from the logits.

Equal forward to modeling/sdtps.py, and its straight-through gradient multiplied by 1e10 (spec 4). studies/explosion.yml runs
it to show what that does to a training; nothing else may.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import modeling.sdtps
import train_net
from config.cli import run


def aggregate(tokens, logits, decision):
    return modeling.sdtps.softmax_mean(tokens, logits.float() - (1 - decision.float()).unsqueeze(-2) * 1e10)


if __name__ == "__main__":
    modeling.sdtps.aggregate = aggregate
    run(train_net.main)
