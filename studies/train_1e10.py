"""train_net.py with the decision mask as the known implementation applies it: (1 - D)·1e10 subtracted from the logits.

Equal forward to modeling/sdtps.py, and its straight-through gradient multiplied by 1e10 (docs/method.md). studies/explosion.yml
runs it to show what that does to a training; nothing else may.
"""
if not __package__:  # run as a script: of its checkout demo_sdtps alone is found, no folder under its common name
    import sys
    from pathlib import Path

    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))
    import demo_sdtps

    sys.path[:] = [folder for folder in sys.path if folder != str(ROOT)]

import demo_sdtps.modeling.sdtps
from demo_sdtps import train_net
from demo_sdtps.config.cli import run


def aggregate(tokens, logits, decision):
    return demo_sdtps.modeling.sdtps.softmax_mean(tokens, logits.float() - (1 - decision.float()).unsqueeze(-2) * 1e10)


if __name__ == "__main__":
    demo_sdtps.modeling.sdtps.aggregate = aggregate
    run(train_net.main)
