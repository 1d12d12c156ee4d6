"""python -m synthetic --root data/synthetic draws triplets, python -m synthetic captions --root data shapes with captions."""

import sys

from demo_sdtps.commands.cli import run
from synthetic import commands

if __name__ == "__main__":
    is_captioned = sys.argv[1:2] == ["captions"]
    sys.argv = [f"python -m synthetic{' captions' * is_captioned}", *sys.argv[1 + is_captioned :]]
    run(commands.captioned if is_captioned else commands.triplets)
