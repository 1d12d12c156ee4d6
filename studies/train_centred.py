"""train_net.py with guides that tell images apart: tokens and globals less their means over the batch, then the cosine.

An experiment of studies/diagnosis.yml, not a part of the method: the similarity of an image depends on its batch.
"""
if not __package__:  # run as a script: of its checkout demo_sdtps alone is found, no folder under its common name
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))
    import demo_sdtps

    sys.path[:] = [folder for folder in sys.path if folder not in (str(ROOT), str(Path(__file__).resolve().parent))]

import demo_sdtps.modeling.sdtps
from demo_sdtps import train_net
from demo_sdtps.config.cli import run

plain = demo_sdtps.modeling.sdtps.cosine_guidance


def cosine_guidance(tokens, guides):
    """tokens (B, N, C), guides (G, B, C) → (G, B, N)."""
    return plain(tokens - tokens.mean(dim=(0, 1)), guides - guides.mean(dim=1, keepdim=True))


if __name__ == "__main__":
    demo_sdtps.modeling.sdtps.cosine_guidance = cosine_guidance
    run(train_net.main)
