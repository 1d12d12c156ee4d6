from demo_sdtps.commands.cli import run
from synthetic.commands import triplets

if __name__ == "__main__":
    run(triplets)
