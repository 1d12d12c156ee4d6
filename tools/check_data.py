"""Counts of a data set beside the expected ones, and how to fix them: python tools/check_data.py --config_file F"""

from demo_sdtps.commands.check_data import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
