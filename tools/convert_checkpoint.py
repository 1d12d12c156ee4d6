"""Convert a checkpoint between DeMo's names and ours, or take out its backbone for other runs to start from:"""

from demo_sdtps.commands.convert_checkpoint import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
