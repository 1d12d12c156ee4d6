"""From a YAML file and KEY VALUE pairs to a checked configuration. Every mistake is a `UserError` of one sentence."""
import difflib
import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from yacs.config import CfgNode

from config.check import check_cfg
from config.common import UserError
from config.schema import KEYS, Key

SCHEMA = {key.name: key for key in KEYS}
SECTIONS = {key.name.rpartition(".")[0] for key in KEYS}
TYPE_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", list: "a list",
              tuple: "a list", dict: "a section", type(None): "nothing"}


def get_cfg() -> CfgNode:
    """A fresh configuration with every key at its default (DeMo's names, spec 13)."""
    cfg = CfgNode()
    for key in KEYS:
        *sections, leaf = key.name.split(".")
        node = cfg
        for section in sections:
            node = node.setdefault(section, CfgNode())
        node[leaf] = list(key.default) if isinstance(key.default, list) else key.default
    return cfg


def load_cfg(config_file: str | Path | None = None, opts: Sequence[str] = ()) -> CfgNode:
    """The configuration of a run: defaults, then the file, then KEY VALUE pairs; checked and frozen.

    Raises `UserError` for a file that cannot be read, an unknown key, a wrong type or an impossible value.
    """
    cfg = get_cfg()
    if config_file is not None:
        for name, value in _flatten(_read_yaml(Path(config_file))):
            _set(cfg, name, value, str(config_file))
    if len(opts) % 2:
        raise UserError(f"The options after the flags must be KEY VALUE pairs, but {opts[-1]!r} stands alone; give it a "
                        "value or leave it out.")
    for name, value in zip(opts[::2], opts[1::2], strict=True):
        _set(cfg, name, value, "the command line")
    if not cfg.OUTPUT_DIR:
        path = Path(config_file or "default.yml")
        cfg.OUTPUT_DIR = str(Path("runs") / path.resolve().parent.name / path.stem)
    check_cfg(cfg)
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


def _read_yaml(path: Path) -> dict:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        json.dumps(content, default=str, skipkeys=True)  # walks the whole of it: a section that holds itself ends here
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The configuration {path} cannot be read ({getattr(error, 'strerror', None) or error}); "
                        "give --config_file an existing YAML file such as configs/RGBNT201/DeMo_SDTPS.yml.") from None
    except (RecursionError, ValueError):
        raise UserError(f"The configuration {path} has a section that holds itself (a YAML alias); correct it there.") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise UserError(f"The configuration {path} is not valid YAML{line}: "
                        f"{getattr(error, 'problem', None) or error}; correct it there.") from None
    if content is None:  # an empty file
        content = {}
    if not isinstance(content, dict):
        raise UserError(f"The configuration {path} holds no KEY: value pairs; see configs/ for examples.")
    return content


def _flatten(content: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is None and f"{prefix}{name}" in SECTIONS:
            continue  # a section whose keys are all commented out
        else:
            yield f"{prefix}{name}", value


def _set(cfg: CfgNode, name: str, value: object, source: str) -> None:
    if name not in SCHEMA:
        # A right leaf in a wrong section or none is nearer than a key that only looks alike.
        near = ([key for key in SCHEMA if key.split(".")[-1] == name.split(".")[-1].upper()]
                or difflib.get_close_matches(name.upper(), SCHEMA, n=1, cutoff=0.5))
        hint = f"the nearest valid key is {near[0]}" if near else "config/schema.py lists the valid ones"
        raise UserError(f"Unknown key {name!r} in {source}; {hint}.")
    key = SCHEMA[name]
    value = _coerce(key, value, source)
    if isinstance(key.allowed, tuple) and value not in key.allowed:
        why = f" ({key.allowed_text})" if key.allowed_text else _nearest(value, key.allowed)
        raise UserError(f"{name} in {source} is {value!r}, but it must be {' or '.join(map(repr, key.allowed))}{why}.")
    if callable(key.allowed) and not key.allowed(value):
        raise UserError(f"{name} in {source} is {value!r}, but it must be {key.allowed_text}.")
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
        raise UserError(f"{key.name} in {source} is {value!r} ({found}), but it must be {TYPE_NAMES[kind]} such as "
                        f"{key.default!r}; it is: {key.description}.")
    return value


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")  # which the key's own test then judges


def _literal(text: str, keep_text: bool) -> object:
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError):
        return text
    # For a text key only a quoted literal such as "('0')" is unwrapped; 0, None and True are texts like any other.
    return value if not keep_text or isinstance(value, str) else text


def _nearest(value: object, allowed: tuple) -> str:
    near = difflib.get_close_matches(str(value), [str(choice) for choice in allowed], n=1)
    return f"; the nearest is {near[0]!r}" if near else ""
