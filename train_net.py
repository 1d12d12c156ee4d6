"""Train a model: python train_net.py --config_file configs/RGBNT201/DeMo_SDTPS.yml [KEY VALUE …]"""

from demo_sdtps.commands.train import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
