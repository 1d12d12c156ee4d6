"""Draw rank lists: python tools/draw_ranks.py --weight W --output ranks.png"""

from demo_sdtps.commands.draw_ranks import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
