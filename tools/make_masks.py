"""Write foreground masks beside the images of a data set: python tools/make_masks.py --config_file F --weight hub"""

from demo_sdtps.commands.make_masks import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
