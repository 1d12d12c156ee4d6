"""Write synthetic images with captions and a tiny text tower: python tools/make_synthetic_captions.py --root data"""

from demo_sdtps.commands.make_synthetic_captions import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
