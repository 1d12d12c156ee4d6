from demo_sdtps.commands.cli import run
from demo_sdtps.commands.train import main

if __name__ == "__main__":
    run(main)
