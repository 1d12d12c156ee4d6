"""train_net.py with guides that tell pictures apart: tokens and globals less their means over the batch, then the cosine.

An experiment of studies/diagnosis.yml, not a part of the method: the similarity of a picture depends on its batch.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import modeling.sdtps
import train_net
from config.cli import run

plain = modeling.sdtps.cosine_guidance


def cosine_guidance(tokens, guides):
    """tokens (B, N, C), guides (G, B, C) → (G, B, N)."""
    return plain(tokens - tokens.mean(dim=(0, 1)), guides - guides.mean(dim=1, keepdim=True))


if __name__ == "__main__":
    modeling.sdtps.cosine_guidance = cosine_guidance
    run(train_net.main)
