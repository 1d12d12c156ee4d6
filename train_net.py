from demo_sdtps.commands.train import main
from demo_sdtps.config.cli import run

if __name__ == "__main__":
    run(main)
