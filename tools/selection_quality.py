"""Share of the kept patches that lie on the person: python tools/selection_quality.py --weight W"""

from demo_sdtps.commands.selection_quality import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
