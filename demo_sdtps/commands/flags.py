"""The flags of commands with a configuration, and the configuration that the words of a command give."""

import argparse
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.commands.cli import add_overwrite, print_lines, read_arguments
from demo_sdtps.config.common import MODALITIES, RETURN_PATTERNS
from demo_sdtps.config.keys import DEMO_SCHEMA, Schema
from demo_sdtps.config.load import StoredText, find_config, load_cfg, parse_pairs, with_values
from demo_sdtps.datasets import SPLITS
from demo_sdtps.runtime.errors import UserError

ANSWERED = {"-h", "--help", "--keys"}
ROOT, NAMES, FOLDERS = "DATASETS.ROOT_DIR", "DATASETS.NAMES", "DATASETS.FOLDERS"
WEIGHT, TEACHER = "TEST.WEIGHT", "MODEL.TEACHER"


class _PrintKeys(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        keys = parser.get_default("schema").by_name.values()
        rows = [key for key in keys if (values or "").upper() in key.name]
        if not rows:
            raise UserError(f"No configuration key has {values!r} in its name; --keys prints all.")
        print_lines(*(f"{key.name} = {key.default!r}\n    {key.description}" for key in rows))
        parser.exit()


def config_parser(
    description: str,
    epilog: str | None = None,
    schema: Schema = DEMO_SCHEMA,
    *,
    weight: str = "a checkpoint",
    images: bool = False,
    data: bool = True,
) -> ArgumentParser:
    """Parser of a configuration, by its name or --config_file, and of KEY VALUE pairs, which override it. `weight` says what
    --weight is, whose configuration is used where none is named, '' for no such flag; with `images` there are
    --images and --modality, for own images without labels as the data; without `data` there is no --data."""
    parser = ArgumentParser(description=description, epilog=epilog)
    parser.set_defaults(schema=schema, stored=("a flag", "", ""))
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIGURATION KEY VALUE",
        help="a configuration such as RGBNT201/DeMo, or a YAML file; a checkpoint has its own; then keys that override it, as "
        "SOLVER.MAX_EPOCHS 10 or SOLVER.MAX_EPOCHS=10",
    )
    parser.add_argument("--config_file", metavar="F", help="the configuration as a YAML file")
    if data:
        parser.add_argument(
            "--data",
            dest=ROOT,
            metavar="PLACE",
            help="folder that holds the data set's own folder; of own data the one with train, query and gallery, or the "
            f"table, which is seen (docs/own_data.md; equivalent to {ROOT}, {NAMES})",
        )
    if weight:
        add_stored(parser, "--weight", "W", weight, WEIGHT)
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
            metavar="FOLDER",
            help="own images without labels, in folders as for demo-sdtps search, in place of the data set (equivalent to "
            f"{NAMES} Images, {ROOT})",
        )
        add_modality(parser)
    return parser


def training_parser(description: str, example: str, schema: Schema = DEMO_SCHEMA) -> ArgumentParser:
    """Parser of a training's command; `example` is its arguments."""
    parser = config_parser(
        f"{description} OUTPUT_DIR receives config.yml, run.json (seed, commit, versions), metrics.json, log.txt, TensorBoard "
        "scalars, last.pth and best.pth. RESUME auto continues it.",
        f"example: %(prog)s {example}",
        schema,
        weight="a checkpoint to start from" if TEACHER in schema.by_name else "",
    )
    add_key(parser, "--epochs", "SOLVER.MAX_EPOCHS", "epochs of training", metavar="N")
    add_overwrite(parser, "replace an earlier run in OUTPUT_DIR: its own files, no other")
    if TEACHER in schema.by_name:
        followed = "a checkpoint whose outputs the model follows, as distillation does"
        add_key(parser, "--teacher", TEACHER, followed, metavar="W")
        parser.add_argument(
            "--from",
            dest="start",
            metavar="W",
            help="a checkpoint that is both start and teacher, such as DeMo's for DeMo_Slim (equivalent to "
            f"{WEIGHT} and {TEACHER})",
        )
    return parser


def add_stored(
    parser: ArgumentParser, flag: str, metavar: str, meaning: str, key: str, file: str = ""
) -> None:
    """Add a flag, equal to a `key`, for a checkpoint, whose configuration is the default, or with `file` for folders of it."""
    add_key(parser, flag, key, meaning, metavar=metavar, action="append" if file else "store")
    parser.set_defaults(stored=(f"{flag} {meaning}", key, file))


def add_return_pattern(parser: ArgumentParser, features: str) -> None:
    """Add the flag --return_pattern; `features` says what becomes of them."""
    meaning, choices = f"{features}: 1 original, 2 enhanced, 3 both", [*map(str, RETURN_PATTERNS)]
    add_key(parser, "--return_pattern", "TEST.RETURN_PATTERN", meaning, choices=choices)


def add_modality(parser: ArgumentParser) -> None:
    """Add the flag --modality."""
    parser.add_argument(
        "--modality",
        dest="flat",
        choices=MODALITIES,
        type=str.upper,
        help="modality of the images of a folder that has no subfolder RGB, NI or TI, or as DATASETS.FOLDERS names them "
        "(equivalent to a further RGB=. there)",
    )


def add_key(parser: ArgumentParser, flag: str, key: str, meaning: str, **options: Any) -> None:
    """Add a flag that sets a key, to True without `options` of argparse."""
    options = options or {"action": "store_const", "const": "True"}
    text = f"{meaning} (equivalent to the key {key})"
    parser.add_argument(flag, dest=key, help=text, **options)


def parse(parser: ArgumentParser) -> tuple[argparse.Namespace, CfgNode]:
    """`read_arguments` of a `config_parser`, and the checked configuration: a flag whose `dest` is a key sets it, and a run's
    config.yml means the run. In the arguments `config_file` becomes the file of a name, `opts` the keys of flags too."""
    arguments = read_arguments(parser)
    schema, words, flags = arguments.schema, arguments.words, vars(arguments)
    if words and not arguments.config_file and _is_config(words[0], schema):
        arguments.config_file, *words = words
    start, data, run = flags.get("start"), flags.get(ROOT), ""
    pairs = ({WEIGHT: start, TEACHER: start} if start else {}) | parse_pairs(words)
    for key, value in flags.items():
        if key in schema.by_name and value:
            pairs[key] = value[0] if isinstance(value, list) else value
    folder = ""
    if flags.get("images"):
        pairs |= {NAMES: "Images", ROOT: arguments.images}
    elif data and schema is DEMO_SCHEMA:
        # own data tell themselves: a table, or the folders of the splits
        is_table = Path(data).is_file()
        if is_table or any(Path(data, split).is_dir() for split in SPLITS):
            pairs.setdefault(NAMES, "CSV" if is_table else "Folder")
            folder = "Own"
    if arguments.config_file:
        arguments.config_file = find_config(arguments.config_file, folder)
        # a training by that of a run is a repetition, which has the run's start
        is_evaluated = WEIGHT in arguments.stored and WEIGHT not in pairs and "start" not in flags
        if is_evaluated and (run := _run_weights(arguments.config_file)):
            pairs[WEIGHT] = run
    elif TEACHER in schema.by_name:
        pairs.setdefault(TEACHER, "")  # that of the checkpoint's own training
    arguments.opts = [word for pair in pairs.items() for word in pair]
    cfg = load_cfg(
        arguments.config_file or _stored_config(arguments, pairs), arguments.opts, schema
    )
    if run and os.environ.get("RANK", "0") == "0":
        print_lines(f"{arguments.config_file} is that of a run: its weights are {run}")
    if flat := flags.get("flat"):
        cfg = with_values(cfg, {FOLDERS: [*cfg.DATASETS.FOLDERS, f"{flat}=."]})
    return arguments, cfg


def _is_config(word: str, schema: Schema) -> bool:
    """Whether the first word after a command is a configuration, and not a key, with its value or without."""
    is_key = "=" in word or word in schema.by_name
    return not is_key and Path(word).suffix in ("", ".yml", ".yaml")


def _run_weights(config: Path) -> str:
    """The best checkpoint, or else the last, of the run whose config.yml a file is; "" for another file."""
    best, last, record = map(config.with_name, ("best.pth", "last.pth", "run.json"))
    weights = last if last.is_file() and not best.is_file() else best
    return str(weights) if config.name == "config.yml" and record.is_file() else ""


def _stored_config(arguments: argparse.Namespace, pairs: dict[str, str]) -> StoredText:
    """The configuration that a checkpoint holds, or a run."""
    flag, key, file = arguments.stored
    if key not in pairs:
        raise UserError(
            f"There is no configuration: name one of configs/, give {flag} that holds one, or give --config_file a YAML file."
        )
    from demo_sdtps.modeling.checkpoints.loading import stored_config

    return stored_config(Path(pairs[key]) / file)


@contextmanager
def parse_in_group(parser: ArgumentParser) -> Iterator[tuple[argparse.Namespace, CfgNode]]:
    """Context manager: the processes that torchrun started form a group, with the arguments of each and the configuration of
    rank 0. A mistake ends all of them, so they are connected first, and only what needs no other process is answered before."""
    if not ANSWERED.isdisjoint(sys.argv):
        parse(parser)
    from demo_sdtps.runtime.distributed import broadcast_from_main, init_distributed

    with init_distributed():
        arguments, cfg = parse(parser)
        yield arguments, broadcast_from_main(lambda: cfg)
