"""Evaluate a checkpoint: python test_net.py --weight runs/RGBNT201/DeMo_SDTPS/best.pth"""

from demo_sdtps.commands.test import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
