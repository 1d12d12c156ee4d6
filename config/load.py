"""From a YAML file and KEY VALUE pairs to a checked configuration. Every mistake is a `UserError` of one sentence."""
import difflib
import os
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from yacs.config import CfgNode

from config.check import check_cfg
from config.common import UserError
from config.schema import KEYS, Key, Schema

DEMO_SCHEMA = Schema(KEYS, check_cfg, "config/schema.py", "configs/RGBNT201/DeMo_SDTPS.yml")
"""The configuration of train_net.py and of every command but SEPS's."""
TYPE_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", list: "a list",
              tuple: "a list", dict: "a section", type(None): "nothing"}
MOST_BYTES, MOST_VALUES, MOST_SHOWN = 1 << 20, 10_000, 200
"""Of a configuration file, of the values in it, and characters of one that a sentence shows."""
LARGEST = 2**32
"""Whole numbers beyond it are no count of anything here, and some not even a number to torch."""


def get_cfg(schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """A fresh configuration with every key of `schema` at its default (DeMo's names, spec 13)."""
    cfg = CfgNode()
    for key in schema.keys:
        *sections, leaf = key.name.split(".")
        node = cfg
        for section in sections:
            node = node.setdefault(section, CfgNode())
        node[leaf] = list(key.default) if isinstance(key.default, list) else key.default
    return cfg


def load_cfg(config_file: str | Path | None = None, opts: Sequence[str] = (), schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """The configuration of a run: defaults, then the file, then KEY VALUE pairs; checked and frozen.

    Raises `UserError` for a file that cannot be read, an unknown key, a wrong type or an impossible value.
    """
    cfg = get_cfg(schema)
    if config_file is not None:
        for name, value in _flatten(_read_yaml(Path(config_file), schema), schema):
            _set(cfg, schema, name, value, str(config_file))
    if len(opts) % 2:
        raise UserError(f"The options after the flags must be KEY VALUE pairs, but {opts[-1]!r} stands alone; give it a "
                        "value or leave it out.")
    for name, value in zip(opts[::2], opts[1::2], strict=True):
        _set(cfg, schema, name, value, "the command line")
    if not cfg.OUTPUT_DIR:
        path = Path(config_file or "default.yml")
        cfg.OUTPUT_DIR = str(Path("runs") / path.resolve().parent.name / path.stem)
    schema.check(cfg)
    cfg.freeze()
    return cfg


def with_values(cfg: CfgNode, values: Mapping[str, object]) -> CfgNode:
    """A frozen copy of a configuration with the values of some keys replaced."""
    cfg = cfg.clone()
    cfg.defrost()
    for name, value in values.items():
        _put(cfg, name, value)
    cfg.freeze()
    return cfg


class _Loader(yaml.SafeLoader):
    """Plain values alone, which nothing runs for; a key that comes twice in a section is refused, not overwritten."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen if isinstance(key, yaml.ScalarNode) else False:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} comes twice in its section", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path, schema: Schema) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
        content = yaml.load(text, _Loader) if len(text) <= MOST_BYTES else None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The configuration {path} cannot be read ({getattr(error, 'strerror', None) or error}); "
                        f"give --config_file an existing YAML file such as {schema.example}.") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"The configuration {path} is not valid YAML{line}: {reason}; correct it there.") from None
    # Too deep, or what is said to be a date, a number or a truth value and is none: yaml's own types raise what they meet.
    except (RecursionError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        raise UserError(f"The configuration {path} holds what is no value ({error}); correct it there.") from None
    if len(text) > MOST_BYTES:
        raise UserError(f"The configuration {path} is larger than {MOST_BYTES} characters, which no configuration is; give "
                        f"--config_file a YAML file such as {schema.example}.")
    if _is_too_much(content):
        raise UserError(f"The configuration {path} has a section that holds itself, or more than {MOST_VALUES} values (YAML "
                        "aliases); correct it there.")
    if content is None:  # an empty file
        content = {}
    if not isinstance(content, dict):
        raise UserError(f"The configuration {path} holds no KEY: value pairs; see configs/ for examples.")
    return content


def _is_too_much(content: object) -> bool:
    """Whether there are more than MOST_VALUES values. Aliases make endlessly many of a few lines."""
    count, levels, end = 0, [iter([content])], object()
    while levels and count <= MOST_VALUES:
        value = next(levels[-1], end)
        if value is end:
            levels.pop()
            continue
        count += 1
        if isinstance(value, Mapping | list):
            levels.append(iter(value.values() if isinstance(value, Mapping) else value))
    return bool(levels)


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
        why = f" ({key.allowed_text})" if key.allowed_text else _nearest(value, key.allowed)
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


def _nearest(value: object, allowed: tuple) -> str:
    near = difflib.get_close_matches(str(value), [str(choice) for choice in allowed], n=1)
    return f"; the nearest is {near[0]!r}" if near else ""
