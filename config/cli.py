"""Shared parts of all commands: flags of the configuration, and error messages."""
import argparse
import errno
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config.common import RETURN_PATTERNS
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, load_cfg, pairs_of
from demo_sdtps.config.schema import Schema
from demo_sdtps.runtime.errors import UserError, is_out_of_memory
from demo_sdtps.runtime.files import check_output_file

PICTURE = (".png", ".pdf", ".svg")
"""Suffixes of a figure."""
OVERWRITE = "replace an output that exists, which is refused otherwise"
NEGATIVE = re.compile(r"-\.?\d\S*|-inf|-nan")
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LOADING = ("lower DATALOADER.NUM_WORKERS (0 loads in this process), enlarge /dev/shm (docker run --shm-size=8g), or raise "
           "DATALOADER.TIMEOUT for a slow disk.")
NO_MEMORY = "There is not enough memory for this; lower SOLVER.IMS_PER_BATCH, TEST.IMS_PER_BATCH or INPUT's sizes."


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


def add_overwrite(parser: argparse.ArgumentParser, meaning: str = OVERWRITE) -> None:
    """Add the flag --overwrite."""
    parser.add_argument("--overwrite", action="store_true", help=meaning)


def add_output(parser: argparse.ArgumentParser, name: str, *suffixes: str, **options: Any) -> None:
    """Add a flag, or an argument, for a file to write that ends in one of `suffixes`; with the first of a parser --overwrite
    too."""
    outputs = parser.get_default("outputs")
    if outputs is None:
        parser.set_defaults(outputs=(outputs := {}))
        add_overwrite(parser)
    outputs[parser.add_argument(name, type=Path, **{"metavar": f"X{'|'.join(suffixes)}"} | options).dest] = suffixes


def add_return_pattern(parser: argparse.ArgumentParser, features: str) -> None:
    """Add the flag --return_pattern to a `config_parser`; `features` says what becomes of them."""
    parser.add_argument("--return_pattern", dest="TEST.RETURN_PATTERN", choices=[str(pattern) for pattern in RETURN_PATTERNS],
                        help=f"{features}: 1 original, 2 enhanced, 3 both (equivalent to the key TEST.RETURN_PATTERN)")


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raise `UserError` where a file of `add_output` cannot be written, or exists without --overwrite. To be called before any
    work; `parse` does."""
    for name, suffixes in arguments.outputs.items():
        if path := getattr(arguments, name):
            check_output_file(path, suffixes, arguments.overwrite)


class CheckpointFlag(NamedTuple):
    """Flag for the checkpoint of a command; without --config_file its stored configuration is used.

    `gives` describes its value, `key` is the equivalent configuration key, and `stored` reads the configuration from the
    checkpoint. With `several` it can be repeated: the argument is a list, the first of which is the key's value.
    """

    name: str
    metavar: str
    gives: str
    key: str
    stored: Callable[[Path], StoredText]
    several: bool = False


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
                            action="append" if checkpoint.several else "store",
                            help=f"{checkpoint.gives} (equivalent to the key {checkpoint.key})")
    parser.add_argument("--keys", metavar="TEXT", nargs="?", action=_PrintKeys,
                        help="print the configuration keys whose name contains TEXT (without it: all) with defaults, and exit")
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE",
                        help="configuration keys and values that override the file, e.g. SOLVER.MAX_EPOCHS 10 or "
                             "SOLVER.MAX_EPOCHS=10")
    return parser


def parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, CfgNode]:
    """Arguments of a `config_parser`, and the checked configuration: a flag whose `dest` is a key sets it. Raises `UserError`,
    also for outputs (`check_outputs`)."""
    # argparse takes a value such as -1e-4 for a flag unless it begins with a space, which is stripped afterwards.
    arguments = parser.parse_intermixed_args([f" {arg}" if NEGATIVE.fullmatch(arg) else arg for arg in sys.argv[1:]])
    pairs, checkpoint = list(pairs_of([arg.strip() for arg in arguments.opts])), arguments.checkpoint
    pairs += [(key, value[0] if isinstance(value, list) else value) for key, value in vars(arguments).items()
              if key in arguments.schema.by_name and value]
    config = arguments.config_file
    if config is None:
        path = dict(pairs).get(checkpoint.key)
        if not path:
            raise UserError(f"There is no configuration: give --{checkpoint.name} {checkpoint.gives}, which contains one, or "
                            f"--config_file a YAML file such as {arguments.schema.example}.")
        config = checkpoint.stored(Path(path))
    cfg = load_cfg(config, [arg for pair in pairs for arg in pair], arguments.schema)
    if "outputs" in arguments:
        check_outputs(arguments)
    return arguments, cfg


def print_lines(*lines: object) -> None:
    """Print each on a line of stdout, at once."""
    print(*lines, sep="\n", flush=True)


def run(main: Callable[[], None]) -> None:
    """Call `main`; a `UserError` becomes one sentence on stderr and exit code 2, a bug keeps its stack trace.

    Errors of the system that name a file, a full disk, a lack of memory and failed loading processes are reported likewise.
    Ctrl-C is exit code 130; where the reader of the output (head, less) has ended, it is 141, that of other programs then.
    """
    code, sentence = 2, ""
    try:
        main()
        sys.stdout.flush()
        code = 0
    except UserError as error:
        sentence = error.args[0]
    except KeyboardInterrupt:
        code, sentence = 130, "interrupted"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would write the rest at its end
        code = 141  # 128 + SIGPIPE, as the shell reports it
    except OSError as error:
        if error.filename is None and error.errno not in DISK_ERRORS:
            raise
        sentence = (f"{error.filename or 'The output'}: the system says {error.strerror!r}; correct the path, its rights or "
                    "the disk.")
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            sentence = NO_MEMORY
        elif "DataLoader" in str(error) and not str(error).startswith("Caught "):  # which is an error of our own code there
            sentence = f"The loading processes failed ({error}); {LOADING}"
        else:
            raise
    # After the error is freed, whose traceback keeps the loading processes alive.
    if sentence:
        rank = f"rank {os.environ['RANK']}: " if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
        sys.stderr.write(f"error: {rank}{sentence}\n" if code == 2 else f"{sentence}\n")
    if code:
        for process in multiprocessing.active_children():
            process.kill()  # one that waits for a lock of another that was killed does not end by itself
        sys.exit(code)
