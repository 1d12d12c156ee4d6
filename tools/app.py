"""Search in a browser: python tools/app.py --weight W --gallery FOLDER"""

from demo_sdtps.commands.app import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
