"""Shared parts of all commands: flags of the configuration, and error messages."""
import argparse
import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from yacs.config import CfgNode

from demo_sdtps.config.common import PATIENCE, UserError
from demo_sdtps.config.ending import ending_in_order
from demo_sdtps.config.files import check_output_file
from demo_sdtps.config.load import DEMO_SCHEMA, StoredText, load_cfg, pairs_of
from demo_sdtps.config.printing import prepare_streams, print_error, print_to_stderr, printable
from demo_sdtps.config.schema import Schema
from demo_sdtps.config.shortage import NO_MEMORY, naming_shortages

OVERWRITE = "replace an output that exists, which is refused otherwise"
NEGATIVE = re.compile(r"-\.?\d\S*|-inf|-nan")
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Parser(argparse.ArgumentParser):
    """argparse's, with control characters of the arguments escaped in its errors. Of the processes that torchrun starts, which
    have the same arguments, one of each machine prints."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if status and not self._prints:
            time.sleep(PATIENCE)  # not before the one that prints: torchrun ends all with the first
        super().exit(status, message)

    def _print_message(self, message: str, file: Any = None) -> None:
        if self._prints:
            super()._print_message(message, file)

    @property
    def _prints(self) -> bool:
        return os.environ.get("LOCAL_RANK", "0") == "0"


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


def add_output(parser: argparse.ArgumentParser, name: str, suffix: str, **options: Any) -> None:
    """Add a flag, or an argument, for a file to write that ends in `suffix`; with the first of a parser --overwrite too."""
    outputs = parser.get_default("outputs")
    if outputs is None:
        parser.set_defaults(outputs=(outputs := {}))
        add_overwrite(parser)
    outputs[parser.add_argument(name, type=Path, **{"metavar": f"X{suffix}"} | options).dest] = suffix


def check_outputs(arguments: argparse.Namespace, inputs: Iterable[str | Path] = ()) -> None:
    """Raise `UserError` where a file of `add_output` cannot be written, exists without --overwrite, or is or lies in one of
    the `inputs`, files and folders that the command reads. To be called before any work; `parse` does."""
    for name, suffix in arguments.outputs.items():
        if path := getattr(arguments, name):
            check_output_file(path, suffix, arguments.overwrite, inputs)


class CheckpointFlag(NamedTuple):
    """Flag for the checkpoint of a command; without --config_file its stored configuration is used.

    `gives` describes its value, `key` is the equivalent configuration key, `stored` reads the configuration from the
    checkpoint, and `inputs` are the files and folders that the command reads: no output may be one of them or lie in one.
    """

    name: str
    metavar: str
    gives: str
    key: str
    stored: Callable[[Path], StoredText]
    inputs: Callable[[CfgNode], list[str | Path]] = lambda cfg: []


def config_parser(description: str, epilog: str | None = None, schema: Schema = DEMO_SCHEMA,
                  checkpoint: CheckpointFlag | None = None) -> argparse.ArgumentParser:
    """Parser of a configuration of `schema`: --config_file, which is optional with a `checkpoint` flag, that flag, --keys, and
    KEY VALUE pairs, which override the rest."""
    parser = Parser(description=description, epilog=epilog)
    parser.set_defaults(schema=schema, checkpoint=checkpoint, inputs=checkpoint.inputs if checkpoint else lambda cfg: [])
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
    """Arguments of a `config_parser`, and the checked configuration. Raises `UserError`, also for outputs (`check_outputs`)."""
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
    cfg = load_cfg(config, [arg for pair in pairs for arg in pair], arguments.schema)
    if "outputs" in arguments:
        check_outputs(arguments, [arguments.config_file, *arguments.inputs(cfg)])
    return arguments, cfg


def run(main: Callable[[], None]) -> None:
    """Call `main`; a `UserError` becomes one sentence on stderr and exit code 2, a bug keeps its stack trace.

    Errors of the system (name too long, folder not readable, a resource that runs out) are reported like a `UserError`. Where
    the reader of the output (head, less) has ended, the exit code is 141, that of other programs then, without a sentence;
    after SIGTERM and SIGHUP it is 143 and 129 (`ending_in_order`).
    """
    prepare_streams()
    try:
        try:
            with ending_in_order(), naming_shortages():
                main()
        finally:
            _flush()
    except UserError as error:
        _fail(error.args[0])
    except KeyboardInterrupt:
        print_to_stderr("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        _stop_printing()
        sys.exit(141)  # 128 + SIGPIPE, as the shell reports it
    except OSError as error:
        if error.filename is None and error.errno in DISK_ERRORS:  # files that are written report theirs themselves
            _stop_printing()
            _fail(f"The standard output cannot be written ({error.strerror}); free some space or send it elsewhere.")
        if error.filename is None:
            raise
        _fail(f"{error.filename}: the system says {error.strerror!r}; correct the path, its rights or the disk.")
    except MemoryError:
        _fail(NO_MEMORY)


def _flush() -> None:
    if sys.stdout:
        sys.stdout.flush()


def _stop_printing() -> None:
    """Drop what the standard output still holds, which Python would otherwise try to write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str) -> None:
    print_error(sentence)
    sys.exit(2)
