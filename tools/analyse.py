"""The numbers behind an evaluation: python tools/analyse.py --weight W --json X.json --output X.png"""

from demo_sdtps.commands.analyse import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
