"""From a YAML file and KEY VALUE pairs to a checked configuration. Every mistake is a `UserError` of one sentence."""
import difflib
import os
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""The configuration of train_net.py and of every command but SEPS's."""
TYPE_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", list: "a list",
              tuple: "a list", dict: "a section", type(None): "nothing"}
MOST_SHOWN = 200
"""Characters of a value that a sentence shows."""
JOINED = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.ASCII | re.DOTALL)
"""KEY=VALUE. A word with another sign before its first = is no such thing."""
CONFIGS = Path(__file__).resolve().parent.parent / "configs"
"""The package's own configurations."""
LARGEST = 2**32
"""Whole numbers beyond it are no count of anything here, and some not even a number to torch."""


def get_cfg(schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """A fresh configuration with every key of `schema` at its default (DeMo's names)."""
    cfg = CfgNode()
    for key in schema.keys:
        *sections, leaf = key.name.split(".")
        node = cfg
        for section in sections:
            node = node.setdefault(section, CfgNode())
        node[leaf] = list(key.default) if isinstance(key.default, list) else key.default
    return cfg


class StoredText(NamedTuple):
    """The configuration that a checkpoint holds, as YAML text."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"the checkpoint {self.path}"


def load_cfg(config: str | Path | StoredText | None = None, opts: Sequence[str] = (), schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """The configuration of a run: defaults, then a file or what a checkpoint holds, then KEY VALUE pairs; checked and frozen.

    Raises `UserError` for a file that cannot be read, an unknown key, a wrong type or an impossible value.
    """
    cfg = get_cfg(schema)
    is_stored = isinstance(config, StoredText)
    if config is not None and not is_stored:
        config = _config_path(Path(config))
    if config is not None:
        for name, value in _stored_values(config, schema) if is_stored else _file_values(config, schema):
            _set(cfg, schema, name, value, str(config))
    for name, value in pairs_of(opts):
        _set(cfg, schema, name, value, "the command line")
    if not cfg.OUTPUT_DIR:
        path = Path("default.yml") if config is None or is_stored else config
        cfg.OUTPUT_DIR = str(Path("runs") / path.resolve().parent.name / path.stem)
    try:
        schema.check(cfg)
    except UserError as error:
        if not is_stored:
            raise
        # The user has neither typed nor seen the values that it names.
        raise UserError(f"{str(error).rstrip('.')} (the configuration is that of {config}).") from None
    cfg.freeze()
    return cfg


def pairs_of(opts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The keys and values of KEY VALUE and KEY=VALUE words. Raises `UserError` for a key without a value."""
    words = iter(opts)
    for word in words:
        joined = JOINED.fullmatch(word)
        key, value = joined.groups() if joined else (word, next(words, None))
        if (isinstance(value, str) and value.startswith("=")) or (joined and not value):
            raise UserError(f"The option {_shown(key)} has no value, or a space beside its =; write KEY VALUE or KEY=VALUE.")
        if value is None:
            raise UserError(f"The options after the flags must be KEY VALUE pairs, but {_shown(word)} stands alone; give it a "
                            "value or leave it out.")
        yield key, value


def _config_path(path: Path) -> Path:
    """The file of that name, or, where there is none, the package's own: RGBNT201/DeMo_SDTPS.yml, with configs/ or without."""
    candidates = (path, CONFIGS / path, CONFIGS.parent / path)
    return next((candidate for candidate in candidates if os.path.exists(candidate)), path)


def _file_values(path: Path, schema: Schema) -> Iterator[tuple[str, object]]:
    advice = f"give --config_file an existing YAML file such as {schema.example}"
    return _flatten(read_yaml(path, "configuration", advice), schema)


def _stored_values(stored: StoredText, schema: Schema) -> list[tuple[str, object]]:
    """Raises `UserError` for a key that the schema lacks: the checkpoint is then of another kind of model."""
    advice = "give --config_file the configuration that it was trained with"
    values = list(_flatten(parse_yaml(stored.text, f"The configuration in {stored}", advice, advice), schema))
    strange = next((name for name, _ in values if name not in schema.by_name), None)
    if strange:
        raise UserError(f"The configuration in {stored} has the unknown key {_shown(strange)}, so it is not of "
                        f"this version's {schema.writer}; {schema.others}, and for any other give --config_file.")
    return values


def with_values(cfg: CfgNode, values: Mapping[str, object]) -> CfgNode:
    """A frozen copy of a configuration with the values of some keys replaced."""
    cfg = cfg.clone()
    cfg.defrost()
    for name, value in values.items():
        _put(cfg, name, value)
    cfg.freeze()
    return cfg


def _flatten(content: Mapping, schema: Schema, prefix: str = "") -> Iterator[tuple[str, object]]:
    sections = {key.name.rpartition(".")[0] for key in schema.keys}
    for name, value in content.items():
        name = _shown(name, str)
        if isinstance(value, Mapping):
            yield from _flatten(value, schema, f"{prefix}{name}.")
        elif value is None and f"{prefix}{name}" in sections:
            continue  # a section whose keys are all commented out
        else:
            yield f"{prefix}{name}", value


def _set(cfg: CfgNode, schema: Schema, name: str, value: object, source: str) -> None:
    keys = schema.by_name
    if name not in keys:
        # A right leaf in a wrong section or none is nearer than a key that only looks alike.
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
        cfg = cfg[section]
    cfg[leaf] = value


def _coerce(key: Key, value: object, source: str) -> object:
    """`value` in the type of the key's default, as DeMo's files write it: "1e-4", ('0'), (40, 70), on."""
    kind = type(key.default)
    if isinstance(value, str):
        value = _literal(value, keep_text=kind is str)
    if kind is str and isinstance(key.allowed, tuple) and "yes" in key.allowed and str(value).lower() in ("true", "false"):
        value = str(value).lower() == "true"
    if kind is str and isinstance(value, bool) and isinstance(key.allowed, tuple):
        # YAML reads an unquoted on, off, yes or no as a boolean.
        value = next((text for text in key.allowed if yaml.safe_load(text) is value), value)
    if kind is bool and isinstance(value, str):
        # The command line takes what a file may say: true, yes, on.
        value = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(value.lower(), value)
    if kind is float and type(value) is int:
        value = _to_float(value)
    if kind in (list, tuple) and isinstance(value, list | tuple):
        value = kind(value)
    if type(value) is not kind:
        found = TYPE_NAMES.get(type(value), type(value).__name__)
        raise UserError(f"{key.name} in {source} is {_shown(value)} ({found}), but it must be {TYPE_NAMES[kind]} such as "
                        f"{key.default!r}; it is: {key.description}.")
    if kind is int and abs(value) > LARGEST:
        raise UserError(f"{key.name} in {source} is {_shown(value)}, which is far too large; it is: {key.description}.")
    if kind is str and not _is_name(value):
        raise UserError(f"{key.name} in {source} is {_shown(value)}, which holds a character that no file name can hold; it "
                        f"is: {key.description}.")
    return value


def _shown(value: object, as_text: Callable[[object], str] = repr) -> str:
    """A value for a sentence, cut where it is long."""
    try:
        text = as_text(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _is_name(text: str) -> bool:
    """Whether the system could take a text for a file's name, as most texts here are."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")  # which the key's own test then judges


def _literal(text: str, keep_text: bool) -> object:
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    # For a text key only a quoted literal such as "('0')" is unwrapped; 0, None and True are texts like any other.
    return value if not keep_text or isinstance(value, str) else text
