"""Draw which patches slimming and SDTPS keep: python tools/draw_tokens.py --weight W --output tokens.png"""

from demo_sdtps.commands.draw_tokens import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
