"""Parameters and multiply-accumulates of a model: python tools/profile_flops.py --config_file F"""

from demo_sdtps.commands.profile_flops import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
