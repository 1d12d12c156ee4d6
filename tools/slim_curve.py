"""mAP against operations of a checkpoint slimmed without training: python tools/slim_curve.py --weight W --output curve.png"""

from demo_sdtps.commands.slim_curve import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
