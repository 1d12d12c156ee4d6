"""Write synthetic triplets in the layout of RGBNT201, with masks: python tools/make_synthetic.py --root data/synthetic"""

from demo_sdtps.commands.make_synthetic import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
