"""What every command shares: the flags for a configuration, and how a user's mistake is told."""
import argparse
import re
import sys
from collections.abc import Callable

from yacs.config import CfgNode

from config.common import UserError
from config.load import load_cfg
from config.schema import KEYS

NEGATIVE = re.compile(r"-\.?\d\S*|-inf|-nan")
KEYS_FLAG_HELP = "print the configuration keys whose name holds TEXT (all without it) with defaults, and exit"


class _PrintKeys(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        rows = [key for key in KEYS if (values or "").upper() in key.name]
        for key in rows:
            print(f"{key.name} = {key.default!r}\n    {key.description}")
        if not rows:
            raise UserError(f"No configuration key holds {values!r} in its name; --keys alone prints all of them.")
        parser.exit()


def positive_int(text: str) -> int:
    """A flag's value as a whole number above 0, for argparse."""
    value = int(text)
    if not 0 < value < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is not above 0, or far too large")
    return value


positive_int.__name__ = "whole number"  # which argparse shows where int() fails


def config_parser(description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser with --config_file, --keys and the KEY VALUE pairs that override the file."""
    parser = argparse.ArgumentParser(description=description, epilog=epilog)
    parser.add_argument("--config_file", metavar="F", required=True, help="YAML file, one of configs/*/*.yml for example")
    parser.add_argument("--keys", metavar="TEXT", nargs="?", action=_PrintKeys, help=KEYS_FLAG_HELP)
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE",
                        help="configuration keys and values that override the file's, e.g. SOLVER.MAX_EPOCHS 10")
    return parser


def parse(parser: argparse.ArgumentParser, *, weight: bool = False) -> tuple[argparse.Namespace, CfgNode]:
    """Arguments and the checked configuration; with `weight`, a --weight flag stands for the key TEST.WEIGHT."""
    if weight:
        parser.add_argument("--weight", metavar="W", help="checkpoint (the same as the key TEST.WEIGHT)")
    # argparse takes a value such as -1e-4 for a flag, unless a space comes before it; the configuration strips it.
    arguments = parser.parse_intermixed_args([f" {word}" if NEGATIVE.fullmatch(word) else word for word in sys.argv[1:]])
    opts = [word.strip() for word in arguments.opts]
    if weight and arguments.weight:
        opts += ["TEST.WEIGHT", arguments.weight]
    return arguments, load_cfg(arguments.config_file, opts)


def run(main: Callable[[], None]) -> None:
    """Call `main`; a `UserError` becomes one sentence on stderr and exit code 2, a real bug keeps its trace."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output (head, less) has gone: nothing left to say
        sys.stderr.close()
