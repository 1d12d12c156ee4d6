"""Shared parts of all commands: flags of the configuration, and error messages. Without torch, as are the parsers of all
commands, so that --help comes at once."""

import argparse
import errno
import multiprocessing
import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from yacs.config import CfgNode

from demo_sdtps.config.common import MODALITIES, RETURN_PATTERNS, WEIGHT_EXAMPLE
from demo_sdtps.config.find import OWN, complete_word, config_of, is_key
from demo_sdtps.config.load import DEMO_SCHEMA, load_cfg, pairs_of, schema_of
from demo_sdtps.config.schema import Schema
from demo_sdtps.runtime.errors import UserError, is_out_of_memory, nearest_name
from demo_sdtps.runtime.files import check_output_file
from demo_sdtps.runtime.threads import prepare_threads

PICTURE = (".png", ".pdf", ".svg")
"""Suffixes of a figure."""
NEGATIVE, FLAG = re.compile(r"-\.?\d\S*|-inf|-nan"), re.compile(r"(?<=^--)[\w-]+")
ANSWERED = {"-h", "--help", "--keys"}
COMPLETING = "_ARGCOMPLETE"
"""Environment variable: a shell asks by argcomplete what may stand at the cursor."""
ROOT, NAMES = "DATASETS.ROOT_DIR", "DATASETS.NAMES"
DATA_SETS = "demo_sdtps.datasets:configs_for"
"""The function, as module:name, that says which data a folder holds."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _PrintKeys(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        keys = schema_of(namespace.config_file, parser.get_default("schemas")).keys
        rows = [key for key in keys if (values or "").upper() in key.name]
        if not rows:
            raise UserError(f"No configuration key has {values!r} in its name; --keys prints all.")
        print_lines(*(f"{key.name} = {key.default!r}\n    {key.description}" for key in rows))
        parser.exit()


def positive_int(text: str) -> int:
    """Type of a flag for argparse: a whole number above 0."""
    value = int(text)
    if not 0 < value < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is not above 0, or far too large")
    return value


positive_int.__name__ = "whole number"  # shown by argparse where int() fails


def add_count(parser: ArgumentParser, flag: str, default: int | None, meaning: str) -> None:
    """Add a flag for a whole number above 0."""
    meaning += f" (default: {default})" if default else ""
    parser.add_argument(flag, type=positive_int, default=default, metavar="N", help=meaning)


def add_choice(
    parser: ArgumentParser, flag: str, choices: Iterable, default: str | int, meaning: str = ""
) -> None:
    """Add a flag for one of `choices`."""
    meaning += f" (default: {default})" if meaning else f"default: {default}"
    parser.add_argument(flag, type=type(default), choices=choices, default=default, help=meaning)


def add_path(parser: ArgumentParser, flag: str, metavar: str, meaning: str) -> None:
    """Add a required flag for a file or folder."""
    parser.add_argument(flag, type=Path, metavar=metavar, required=True, help=meaning)


def add_switch(parser: ArgumentParser, flag: str, meaning: str) -> None:
    """Add a flag without a value, which is False by default."""
    parser.add_argument(flag, action="store_true", help=meaning)


def add_overwrite(
    parser: ArgumentParser,
    meaning: str = "replace an output that exists, which is refused otherwise",
) -> None:
    """Add the flag --overwrite."""
    add_switch(parser, "--overwrite", meaning)


def add_output(parser: ArgumentParser, name: str, *suffixes: str, **options: Any) -> None:
    """Add a flag, or an argument, for a file to write that ends in one of `suffixes`; with the first of a parser --overwrite
    too."""
    outputs = parser.get_default("outputs")
    if outputs is None:
        parser.set_defaults(outputs=(outputs := {}))
        add_overwrite(parser)
    options = {"metavar": f"X{'|'.join(suffixes)}"} | options
    outputs[parser.add_argument(name, type=Path, **options).dest] = suffixes


def add_picture(parser: ArgumentParser, default: str) -> None:
    """Add the flag --output for a figure."""
    add_output(parser, "--output", *PICTURE, default=default, help=f"default: {default}")


def add_return_pattern(parser: ArgumentParser, features: str) -> None:
    """Add the flag --return_pattern to a `config_parser`; `features` says what becomes of them."""
    parser.add_argument(
        "--return_pattern",
        dest="TEST.RETURN_PATTERN",
        choices=[str(pattern) for pattern in RETURN_PATTERNS],
        help=f"{features}: 1 original, 2 enhanced, 3 both (equivalent to the key TEST.RETURN_PATTERN)",
    )


class _SetKeys(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        vars(namespace).update({key: text.format(values) for key, text in self.const.items()})


def add_modality(parser: ArgumentParser, **options: Any) -> None:
    """Add the flag --modality."""
    parser.add_argument(
        "--modality",
        choices=MODALITIES,
        type=str.upper,
        **options,
        help="modality of the images of a folder that has no subfolder RGB, NI or TI",
    )


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raise `UserError` where a file of `add_output` cannot be written, or exists without --overwrite. To be called before any
    work; `read_arguments` does."""
    for name, suffixes in getattr(arguments, "outputs", {}).items():
        if path := getattr(arguments, name):
            check_output_file(path, suffixes, arguments.overwrite)


class CheckpointFlag(NamedTuple):
    """Flag for the checkpoint of a command; without --config_file its stored configuration is used."""

    name: str
    metavar: str
    gives: str  # what its value is
    key: str  # of the configuration, equivalent to the flag
    stored: str  # the function, as module:name, that reads the configuration from the checkpoint
    example: str = WEIGHT_EXAMPLE  # a checkpoint, for messages
    several: bool = False  # can be repeated: a list, of which the key's value is the first


STORED = "demo_sdtps.modeling.checkpoints.loading:stored_config"
WEIGHT = CheckpointFlag("weight", "W", "a checkpoint", "TEST.WEIGHT", STORED)
"""The flag --weight."""


def config_parser(
    description: str,
    epilog: str | None = None,
    *schemas: Schema,
    checkpoint: CheckpointFlag | None = None,
    images: bool = False,
    data: bool = True,
) -> ArgumentParser:
    """Parser of a configuration of the first of `schemas` (default: DEMO_SCHEMA) that has its keys: its name or --config_file,
    which is optional with a `checkpoint` flag, that flag, --keys, and KEY VALUE pairs, which override the rest; with `images`
    also --images and --modality, own images without labels as the data; without `data` no --data."""
    parser = ArgumentParser(description=description, epilog=epilog)
    parser.set_defaults(schemas=schemas or (DEMO_SCHEMA,), checkpoint=checkpoint)
    default = f" (default: that in the checkpoint of --{checkpoint.name})" if checkpoint else ""
    parser.add_argument(
        "configuration",
        nargs="?",
        metavar="CONFIGURATION",
        help=f"such as DeMo_Slim or RGBNT201/DeMo, or a YAML file{default}",
    )
    parser.add_argument("--config_file", metavar="F", help="the same as a flag, for a YAML file")
    if data:
        parser.add_argument(
            "--data",
            dest=ROOT,
            metavar="PLACE",
            help="folder that holds the data set's own folder; of own data the one with train, query and gallery, or the "
            f"table, which is seen (docs/own_data.md; equivalent to {ROOT}, {NAMES})",
        )
    if checkpoint:
        parser.add_argument(
            f"--{checkpoint.name}",
            dest=checkpoint.key,
            metavar=checkpoint.metavar,
            action="append" if checkpoint.several else "store",
            help=f"{checkpoint.gives} (equivalent to the key {checkpoint.key})",
        )
    parser.add_argument(
        "--keys",
        metavar="TEXT",
        nargs="?",
        action=_PrintKeys,
        help="print the keys whose name contains TEXT (without it: all) with their defaults, and exit",
    )
    if images:
        parser.add_argument(
            "--images",
            action=_SetKeys,
            const={NAMES: "Images", ROOT: "{}"},
            metavar="FOLDER",
            help="own images without labels, in folders as for demo-sdtps search, in place of the data set (equivalent to "
            f"{NAMES} Images, {ROOT})",
        )
        add_modality(parser, action=_SetKeys, const={"DATASETS.FOLDERS": "[{}=.]"})
    parser.add_argument(
        "opts",
        nargs="*",
        metavar="KEY VALUE",
        help="override the configuration, e.g. SOLVER.MAX_EPOCHS 10 or SOLVER.MAX_EPOCHS=10",
    )
    for action in parser._get_positional_actions():
        vars(action)["completer"] = complete_word  # as argcomplete reads it
    return parser


def training_parser(
    description: str,
    example: str,
    schema: Schema = DEMO_SCHEMA,
    checkpoint: CheckpointFlag | None = None,
) -> ArgumentParser:
    """Parser of a training's command, with a flag for a `checkpoint` to start from; `example` is its arguments."""
    parser = config_parser(
        f"{description} OUTPUT_DIR receives config.yml, run.json (seed, commit, versions), metrics.json, log.txt, TensorBoard "
        "scalars, last.pth and best.pth. RESUME auto continues it.",
        f"example: %(prog)s {example}",
        schema,
        checkpoint=checkpoint,
    )
    parser.add_argument(
        "--epochs",
        dest="SOLVER.MAX_EPOCHS",
        metavar="N",
        help="epochs of training (equivalent to the key SOLVER.MAX_EPOCHS)",
    )
    add_overwrite(parser, "replace an earlier run in OUTPUT_DIR: its own files, no other")
    # Passed by old versions of torch.distributed.launch; the environment has it too.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser


def read_arguments(parser: ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """The words of a command, by default this one's; in the name of a flag - is as good as _."""
    if COMPLETING in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)  # ends the process
    words = sys.argv[1:] if words is None else words
    words = [FLAG.sub(lambda flag: flag[0].replace("-", "_"), word) for word in words]
    # argparse takes a value such as -1e-4 for a flag unless it begins with a space, which is stripped afterwards.
    words = [f" {word}" if NEGATIVE.fullmatch(word) else word for word in words]
    _check_flags(parser, words)
    arguments = parser.parse_intermixed_args(words)
    if "opts" in arguments:
        arguments.opts = [word.strip() for word in arguments.opts]
    check_outputs(arguments)
    return arguments


def _check_flags(parser: ArgumentParser, words: Iterable[str]) -> None:
    """Raise `UserError` for a flag that the parser does not have. argparse would first name what is missing without it."""
    flags = parser._option_string_actions
    for word in takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        is_flag = name.startswith("-") and " " not in name
        if is_flag and not any(flag.startswith(name) for flag in flags):
            raise UserError(
                f"There is no flag {name}{nearest_name(name, flags)}; --help lists all."
            )


def parse(parser: ArgumentParser) -> tuple[argparse.Namespace, CfgNode]:
    """`read_arguments` of a `config_parser`, and the checked configuration: a flag whose `dest` is a key sets it. In the
    arguments `config_file` becomes the file of a name, `opts` the keys of flags too, and `schema` is added."""
    arguments = read_arguments(parser)
    schemas, checkpoint, data = arguments.schemas, arguments.checkpoint, vars(arguments).get(ROOT)
    kinds = resolve_name(DATA_SETS)(Path(data)) if data else []
    words = [*filter(None, [arguments.configuration]), *arguments.opts]
    if words and not arguments.config_file and not is_key(words[0], schemas[0]):
        arguments.config_file = str(config_of(name := words.pop(0), data, kinds, schemas[0]))
        if arguments.config_file != name and os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"configuration: {arguments.config_file}\n")
    arguments.schema = schema = schema_of(arguments.config_file, schemas)
    pairs = dict(pairs_of(words))
    for key, value in vars(arguments).items():
        if key in schema.by_name and value:
            pairs[key] = value[0] if isinstance(value, list) else value
    if data and kinds == [OWN] and schema is DEMO_SCHEMA:
        pairs.setdefault(NAMES, "CSV" if Path(data).is_file() else "Folder")
    config = arguments.config_file
    if config is None:
        path = checkpoint and pairs.get(checkpoint.key)
        if not path:
            flag = (
                checkpoint and f"give --{checkpoint.name} {checkpoint.gives}, which contains one, "
            )
            raise UserError(
                f"There is no configuration: name one, such as {schema.example.removeprefix('configs/').removesuffix('.yml')}, "
                f"{flag or ''}or give --config_file a YAML file."
            )
        config = resolve_name(checkpoint.stored)(Path(path), checkpoint.example)
    arguments.opts = [word for pair in pairs.items() for word in pair]
    return arguments, load_cfg(config, arguments.opts, schema)


@contextmanager
def parse_in_group(parser: ArgumentParser) -> Iterator[tuple[argparse.Namespace, CfgNode]]:
    """Context manager: the processes that torchrun started form a group, with the arguments of each and the configuration of
    rank 0.

    A mistake ends all of them, so they are connected first, and only what needs no other process is answered before.
    """
    if COMPLETING in os.environ or not ANSWERED.isdisjoint(sys.argv):
        parse(parser)
    from demo_sdtps.runtime.distributed import broadcast_from_main, init_distributed

    with init_distributed():
        arguments, cfg = parse(parser)
        yield arguments, broadcast_from_main(lambda: cfg)


def print_lines(*lines: object) -> None:
    """Print each on a line of stdout, at once."""
    print(*lines, sep="\n", flush=True)


def count_of(number: int, noun: str) -> str:
    """A number and what it counts: "1 shard", "2 shards"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def run(main: Callable[[], None]) -> None:
    """Set the number of threads and their wait policy, before torch is imported, and call `main`.

    A `UserError` becomes one sentence on stderr and exit code 2, a bug keeps its stack trace.

    Errors of the system that name a file, a full disk, a lack of memory and failed loading processes are reported likewise.
    Ctrl-C is exit code 130; where the reader of the output (head, less) has ended, it is 141, that of other programs then.
    """
    code, sentence = 2, ""
    prepare_threads()
    with suppress(AttributeError):  # of a notebook
        # a name of a file need not be text
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        main()
        sys.stdout.flush()
        code = 0
    except UserError as error:
        sentence = error.args[0]
    except KeyboardInterrupt:
        code, sentence = 130, "interrupted"
    except BrokenPipeError:
        # Python would write the rest at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141  # 128 + SIGPIPE, as the shell reports it
    except OSError as error:
        if error.filename is None and error.errno not in DISK_ERRORS:
            raise
        sentence = f"{error.filename or 'The output'}: the system says {error.strerror!r}; correct path, rights or disk."
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            sentence = "There is not enough memory for this; lower SOLVER.IMS_PER_BATCH, TEST.IMS_PER_BATCH or INPUT's sizes."
        elif "DataLoader" in str(error) and not str(error).startswith("Caught "):
            # which is an error of our own code there
            sentence = (
                f"The loading processes failed ({error}); lower DATALOADER.NUM_WORKERS (0 loads in this process), enlarge "
                "/dev/shm (docker run --shm-size=8g), or raise DATALOADER.TIMEOUT for a slow disk."
            )
        elif re.search(r"No working C\+\+ compiler|Failed to find C compiler", str(error)):
            sentence = "MODEL.COMPILE needs a compiler, and there is none; install g++ (gcc for a GPU), or set it to False."
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
