"""Evaluate a checkpoint of SEPS: python test_seps.py --weight runs/SEPS/flickr30k/best.pth"""

from demo_sdtps.commands.test_seps import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
