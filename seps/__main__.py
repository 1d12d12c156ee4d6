"""python -m seps train shapes --data data, python -m seps test --weight W, python -m seps check shapes --data data"""

import sys

from demo_sdtps.config.cli import print_lines, run
from demo_sdtps.runtime.errors import UserError, nearest_name
from seps import commands

COMMANDS = {
    "train": (commands.train, "train SEPS, image-text matching"),
    "test": (commands.test, "evaluate a checkpoint of SEPS"),
    "check": (commands.check, "counts of images with captions beside the expected ones"),
}


def main() -> None:
    """Call the command that the first word names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        rows = (f"  {each:10}{meaning}" for each, (_, meaning) in COMMANDS.items())
        return print_lines(
            "usage: python -m seps COMMAND …, where COMMAND --help explains each:", "", *rows
        )
    if name not in COMMANDS:
        raise UserError(
            f"There is no command {name!r}{nearest_name(name, COMMANDS)}; python -m seps --help lists all."
        )
    sys.argv = [f"python -m seps {name}", *sys.argv[2:]]
    COMMANDS[name][0]()


if __name__ == "__main__":
    run(main)
