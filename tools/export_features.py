"""Write the features of a split as numpy arrays: python tools/export_features.py --weight W --output X.npz"""

from demo_sdtps.commands.export_features import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
