"""Draw the training curves of a run: python tools/draw_curves.py --run runs/demo"""

from demo_sdtps.commands.draw_curves import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
