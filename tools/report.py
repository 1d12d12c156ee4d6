"""Images and a table of a finished run: python tools/report.py --run runs/demo [KEY VALUE …]"""

from demo_sdtps.commands.report import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
