"""Shared parts of all commands: flags of the configuration, and error messages."""
import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config.common import UserError, printable
from demo_sdtps.config.files import check_output_file
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, load_cfg, pairs_of
from demo_sdtps.config.schema import Schema
from demo_sdtps.config.shortage import naming_shortages

NEGATIVE = re.compile(r"-\.?\d\S*|-inf|-nan")
OUT_OF_MEMORY = re.compile("^OutOfMemoryError:|can't allocate memory|not enough memory")
"""Errors of torch, which is not imported here, on CUDA and on a CPU."""


class _PrintKeys(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        rows = [key for key in parser.get_default("schema").keys if (values or "").upper() in key.name]
        if not rows:
            raise UserError(f"No configuration key holds {values!r} in its name; --keys alone prints all of them.")
        sys.stdout.writelines(f"{key.name} = {key.default!r}\n    {key.description}\n" for key in rows)
        parser.exit()


def positive_int(text: str) -> int:
    """Type of a flag for argparse: a whole number above 0."""
    value = int(text)
    if not 0 < value < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is not above 0, or far too large")
    return value


positive_int.__name__ = "whole number"  # shown by argparse where int() fails


def output_file(suffix: str) -> Callable[[str], Path]:
    """Type of a flag for argparse: a file with this suffix that can be written. Raises `UserError`."""
    return lambda text: check_output_file(Path(text), suffix)


class CheckpointFlag(NamedTuple):
    """Flag for the checkpoint of a command; without --config_file its stored configuration is used.

    `gives` describes its value, `key` is the equivalent configuration key, and `stored` reads the configuration from the
    checkpoint.
    """

    name: str
    metavar: str
    gives: str
    key: str
    stored: Callable[[Path], StoredText]


def config_parser(description: str, epilog: str | None = None, schema: Schema = DEMO_SCHEMA,
                  checkpoint: CheckpointFlag | None = None) -> argparse.ArgumentParser:
    """Parser of a configuration of `schema`: --config_file, which is optional with a `checkpoint` flag, that flag, --keys, and
    KEY VALUE pairs, which override the rest."""
    parser = argparse.ArgumentParser(description=description, epilog=epilog)
    parser.set_defaults(schema=schema, checkpoint=checkpoint)
    default = f" (default: the configuration in the checkpoint of --{checkpoint.name})" if checkpoint else ""
    parser.add_argument("--config_file", metavar="F", required=not checkpoint,
                        help=f"YAML file, one of configs/*/*.yml for example{default}")
    if checkpoint:
        parser.add_argument(f"--{checkpoint.name}", dest=checkpoint.key, metavar=checkpoint.metavar,
                            help=f"{checkpoint.gives} (equivalent to the key {checkpoint.key})")
    parser.add_argument("--keys", metavar="TEXT", nargs="?", action=_PrintKeys,
                        help="print the configuration keys whose name contains TEXT (without it: all) with defaults, and exit")
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE",
                        help="configuration keys and values that override the file, e.g. SOLVER.MAX_EPOCHS 10 or "
                             "SOLVER.MAX_EPOCHS=10")
    return parser


def parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, CfgNode]:
    """Arguments of a `config_parser`, and the checked configuration. Raises `UserError`."""
    # argparse takes a value such as -1e-4 for a flag unless it begins with a space, which is stripped afterwards.
    arguments = parser.parse_intermixed_args([f" {arg}" if NEGATIVE.fullmatch(arg) else arg for arg in sys.argv[1:]])
    pairs, checkpoint = list(pairs_of([arg.strip() for arg in arguments.opts])), arguments.checkpoint
    if checkpoint and getattr(arguments, checkpoint.key):
        pairs.append((checkpoint.key, getattr(arguments, checkpoint.key)))
    config = arguments.config_file
    if config is None:
        path = dict(pairs).get(checkpoint.key)
        if not path:
            raise UserError(f"There is no configuration: give --{checkpoint.name} {checkpoint.gives}, which contains one, or "
                            f"--config_file a YAML file such as {arguments.schema.example}.")
        config = checkpoint.stored(Path(path))
    return arguments, load_cfg(config, [arg for pair in pairs for arg in pair], arguments.schema)


def run(main: Callable[[], None]) -> None:
    """Call `main`; a `UserError` becomes one sentence on stderr and exit code 2, a bug keeps its stack trace.

    Errors of the system (name too long, folder not readable, a resource that runs out) are reported like a `UserError`.
    """
    try:
        with naming_shortages():
            main()
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BrokenPipeError:  # the reader of the output (head, less) has ended
        sys.stderr.close()
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"{error.filename}: the system says {error.strerror!r}; correct the path, its rights or the disk.")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}"):
            raise
        _fail("There is not enough memory for this; lower SOLVER.IMS_PER_BATCH, TEST.IMS_PER_BATCH or INPUT's sizes.")


def _fail(sentence: str) -> None:
    sys.stderr.write("error: " + "\n".join(map(printable, sentence.split("\n"))) + "\n")
    sys.exit(2)
