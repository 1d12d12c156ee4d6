"""Checked configuration from a YAML file and KEY VALUE pairs. Every mistake is a `UserError` of one sentence."""
import difflib
import math
import os
import re
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from yacs.config import CfgNode

from demo_sdtps.config.check import check_cfg
from demo_sdtps.config.common import UserError, nearest
from demo_sdtps.config.schema import KEYS, Key, Schema
from demo_sdtps.config.yaml_file import parse_yaml, read_yaml

DEMO_SCHEMA = Schema(KEYS, check_cfg, "config/schema.py", "configs/RGBNT201/DeMo_SDTPS.yml", "train_net.py",
                     "a checkpoint of SEPS belongs to test_seps.py")
"""Configuration of train_net.py and of all commands but those of SEPS."""
TYPE_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", list: "a list",
              tuple: "a list", dict: "a section", type(None): "nothing"}
MOST_SHOWN = 200  # characters of a value in a message
JOINED = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.ASCII | re.DOTALL)  # KEY=VALUE
CONFIGS = Path(__file__).resolve().parent.parent / "configs"  # the configurations of the package
LARGEST = 2**32  # limit of whole numbers; torch does not accept much larger ones


def get_cfg(schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """New configuration with every key of `schema` at its default (names as in DeMo)."""
    cfg = CfgNode()
    for key in schema.keys:
        _put(cfg, key.name, list(key.default) if isinstance(key.default, list) else key.default)
    return cfg


class StoredText(NamedTuple):
    """Configuration stored in a checkpoint, as YAML text."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"the checkpoint {self.path}"


def load_cfg(config: str | Path | StoredText | None = None, opts: Sequence[str] = (), schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """Configuration of a run: defaults, then a file or a stored configuration, then KEY VALUE pairs; checked and frozen.

    Raises `UserError` for a file that cannot be read, an unknown key, a wrong type or an invalid value.
    """
    cfg, path, source = get_cfg(schema), Path("default.yml"), ""
    values: Iterable[tuple[str, object]] = ()
    if isinstance(config, StoredText):
        values, source = _stored_values(config, schema), str(config)
    elif config is not None:
        path = _config_path(Path(config))
        advice = f"give --config_file an existing YAML file such as {schema.example}"
        values, source = flatten(read_yaml(path, "configuration", advice), schema), str(path)
    for name, value in values:
        _set(cfg, schema, name, value, source)
    for name, text in pairs_of(opts):
        _set(cfg, schema, name, text, "the command line")
    if not cfg.OUTPUT_DIR:
        cfg.OUTPUT_DIR = str(Path("runs") / path.resolve().parent.name / path.stem)
    try:
        schema.check(cfg)
    except UserError as error:
        if not isinstance(config, StoredText):
            raise
        # The user has not typed the values in the message.
        raise UserError(f"{str(error).rstrip('.')} (the configuration is that of {config}).") from None
    cfg.freeze()
    return cfg


def pairs_of(opts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Keys and values of KEY VALUE and KEY=VALUE arguments. Raises `UserError` for a key without a value."""
    cli_args = iter(opts)
    for arg in cli_args:
        joined = JOINED.fullmatch(arg)
        key, value = joined.groups() if joined else (arg, next(cli_args, None))
        if (isinstance(value, str) and value.startswith("=")) or (joined and not value):
            raise UserError(f"The option {_shown(key)} has no value, or a space beside its =; write KEY VALUE or KEY=VALUE.")
        if value is None:
            raise UserError(f"The options after the flags must be KEY VALUE pairs, but {_shown(arg)} has no value; give it one "
                            "or remove it.")
        yield key, value


def schema_of(config: str | Path, schemas: Sequence[Schema]) -> Schema:
    """The first of `schemas` that has every key of a YAML file, else the first of all.

    Raises `UserError` for a file that cannot be read.
    """
    content = read_yaml(_config_path(Path(config)), "configuration", f"give an existing YAML file such as {schemas[0].example}")
    fitting = (schema for schema in schemas if all(name in schema.by_name for name, _ in flatten(content, schema)))
    return next(fitting, schemas[0])


def _config_path(path: Path) -> Path:
    """`path`, or where it does not exist, that of the package: RGBNT201/DeMo_SDTPS.yml, with or without configs/."""
    candidates = (path, CONFIGS / path, CONFIGS.parent / path)
    return next((candidate for candidate in candidates if os.path.exists(candidate)), path)


def _stored_values(stored: StoredText, schema: Schema) -> list[tuple[str, object]]:
    """Values of a stored configuration. Raises `UserError` for an unknown key, as in checkpoints of another kind of model."""
    advice = "give --config_file the configuration that it was trained with"
    values = list(flatten(parse_yaml(stored.text, f"The configuration in {stored}", advice, advice), schema))
    unknown = next((name for name, _ in values if name not in schema.by_name), None)
    if unknown:
        raise UserError(f"The configuration in {stored} has the unknown key {_shown(unknown)}, so it is not of "
                        f"this version's {schema.writer}; {schema.others}, and for any other give --config_file.")
    return values


def with_values(cfg: CfgNode, values: Mapping[str, object]) -> CfgNode:
    """Frozen copy of a configuration with other values of some keys."""
    cfg = cfg.clone()
    cfg.defrost()
    for name, value in values.items():
        _put(cfg, name, value)
    cfg.freeze()
    return cfg


def flatten(content: Mapping, schema: Schema, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Full keys of nested sections and their values."""
    sections = {key.name.rpartition(".")[0] for key in schema.keys}
    for name, value in content.items():
        name = _shown(name, str)
        if isinstance(value, Mapping):
            yield from flatten(value, schema, f"{prefix}{name}.")
        elif value is None and f"{prefix}{name}" in sections:
            continue  # a section whose keys are all commented out
        else:
            yield f"{prefix}{name}", value


def flat(cfg: CfgNode, schema: Schema = DEMO_SCHEMA) -> dict[str, object]:
    """Full keys of a configuration and their values, as a YAML file of it holds them."""
    return dict(flatten(yaml.safe_load(cfg.dump()), schema))


def _set(cfg: CfgNode, schema: Schema, name: str, value: object, source: str) -> None:
    keys = schema.by_name
    if name not in keys:
        # A key with the same last part is preferred to one with a similar spelling.
        near = ([key for key in keys if key.split(".")[-1] == name.split(".")[-1].upper()]
                or difflib.get_close_matches(name.upper(), keys, n=1, cutoff=0.5))
        hint = f"the nearest valid key is {near[0]}" if near else f"{schema.place} lists the valid ones"
        raise UserError(f"Unknown key {_shown(name)} in {source}; {hint}.")
    key = keys[name]
    value = _coerce(key, value, source)
    if isinstance(key.allowed, tuple) and value not in key.allowed:
        why = f" ({key.allowed_text})" if key.allowed_text else nearest(value, key.allowed)
        raise UserError(f"{name} in {source} is {_shown(value)}, but it must be {' or '.join(map(repr, key.allowed))}{why}.")
    if callable(key.allowed) and not key.allowed(value):
        raise UserError(f"{name} in {source} is {_shown(value)}, but it must be {key.allowed_text}.")
    _put(cfg, name, value)


def _put(cfg: CfgNode, name: str, value: object) -> None:
    *sections, leaf = name.split(".")
    for section in sections:
        cfg = cfg.setdefault(section, CfgNode())
    cfg[leaf] = value


def _coerce(key: Key, value: object, source: str) -> object:
    """`value` in the type of the default, with the spellings of DeMo's files: "1e-4", ('0'), (40, 70), on."""
    kind: type = type(key.default)
    if isinstance(value, str):
        value = _literal(value, keep_text=kind is str)
    if kind is str and isinstance(key.allowed, tuple) and "yes" in key.allowed and str(value).lower() in ("true", "false"):
        value = str(value).lower() == "true"
    if kind is str and isinstance(value, bool) and isinstance(key.allowed, tuple):
        # YAML reads an unquoted on, off, yes or no as a boolean.
        value = next((text for text in key.allowed if yaml.safe_load(text) is value), value)
    if kind is bool and isinstance(value, str):
        # The command line accepts the spellings of YAML.
        value = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(value.lower(), value)
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 10**308 else math.inf  # judged by the test of the key
    if kind in (list, tuple) and isinstance(value, list | tuple):
        value = kind(value)
    if type(value) is not kind:
        found = TYPE_NAMES.get(type(value), type(value).__name__)
        raise UserError(f"{key.name} in {source} is {_shown(value)} ({found}), but it must be {TYPE_NAMES[kind]} such as "
                        f"{key.default!r}; it is: {key.description}.")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise UserError(f"{key.name} in {source} is {_shown(value)}, which is far too large; it is: {key.description}.")
    if isinstance(value, str) and not _is_file_name(value):
        raise UserError(f"{key.name} in {source} is {_shown(value)}, which has a character that is invalid in file names; it "
                        f"is: {key.description}.")
    return value


def _shown(value: object, as_text: Callable[[object], str] = repr) -> str:
    """Value for a message, truncated if long."""
    try:
        text = as_text(value)
    except ValueError:  # Python does not convert whole numbers of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _is_file_name(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _literal(text: str, keep_text: bool) -> object:
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    # For a text only a quoted literal such as "('0')" is unwrapped; 0, None and True remain texts.
    return value if not keep_text or isinstance(value, str) else text
