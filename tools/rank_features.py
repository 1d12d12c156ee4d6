"""mAP and CMC of exported features, larger than the memory: python tools/rank_features.py --query Q --gallery G"""

from demo_sdtps.commands.rank_features import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
