"""Train SEPS, image-text matching: python train_seps.py --config_file configs/SEPS/flickr30k.yml [KEY VALUE …]"""

from demo_sdtps.commands.train_seps import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
