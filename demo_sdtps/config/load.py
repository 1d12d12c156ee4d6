"""Checked configuration from a YAML file, or its name, and KEY VALUE pairs. Every mistake is a `UserError` of one sentence.

The plug-in imports this module with yacs alone, in Python 3.8.
"""

from __future__ import annotations

import io
import sys
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yacs.config import CfgNode

from demo_sdtps.config.common import WITHOUT_EFFECT
from demo_sdtps.config.keys import DEMO_SCHEMA, Key, Schema
from demo_sdtps.config.left import LEFT
from demo_sdtps.runtime.errors import UserError, nearest_name

PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
"""The published configurations: in an installed package inside it, in a checkout beside it."""
FIXED = ("INPUT.SIZE_TEST", "INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD", "TEST.NECK_FEAT")
"""Keys beside those of MODEL whose values are part of the graph."""
SCORE = "MODEL.SLIM_SCORE"


class StoredText(NamedTuple):
    """Configuration stored in a checkpoint, as YAML text."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"the checkpoint {self.path}"

    def values(self) -> dict[str, object]:
        """Values by full key."""
        return flatten(parse_yaml(self.text, f"The configuration in {self}"))


def get_cfg(schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """New configuration with every key of `schema` at its default (names as in DeMo)."""
    return _nested({name: key.default for name, key in schema.by_name.items()})


def load_cfg(
    config: str | Path | StoredText | None = None,
    opts: Sequence[str] = (),
    schema: Schema = DEMO_SCHEMA,
) -> CfgNode:
    """Configuration of a run: defaults, then a file or a stored configuration, then KEY VALUE pairs; checked and frozen."""
    path, pairs, values = Path("default.yml"), parse_pairs(opts), flatten(get_cfg(schema))
    if isinstance(config, StoredText):
        values |= _check_values(schema, config.values(), config)
        if SCORE not in pairs:
            _check_stored_score(str(values.get(SCORE)), config)
    elif config is not None:
        path = find_config(config)
        values |= _check_values(schema, read_config(path), path)
    values |= _check_values(schema, pairs, "the command line")
    values["OUTPUT_DIR"] = values["OUTPUT_DIR"] or f"runs/{path.resolve().parent.name}/{path.stem}"
    cfg = _nested(values)
    schema.check(cfg)
    cfg.freeze()
    return cfg


def with_values(cfg: CfgNode, values: Mapping[str, object]) -> CfgNode:
    """Frozen copy of a configuration with other values of some keys."""
    cfg = _nested({**flatten(cfg), **values})
    cfg.freeze()
    return cfg


def find_config(name: str | Path, folder: str = "") -> Path:
    """The file of a configuration: a path, or a name in the package such as RGBNT201/DeMo_SDTPS, with or without configs/, the
    `folder` in it, and .yml."""
    for place in (Path(), CONFIGS, CONFIGS / folder, CONFIGS.parent):
        for ending in ("", ".yml"):
            if (path := place / f"{name}{ending}").is_file():
                return path
    published = (path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.glob("*/*.yml"))
    raise UserError(
        f"There is no configuration {str(name)!r}{nearest_name(name, published)}; give a YAML file or a name of configs/."
    )


def read_config(path: Path) -> dict[str, object]:
    """Values by full key of a YAML file on those of its `_BASE_: file`, which fvcore reads; an empty section changes none."""
    from fvcore.common.config import CfgNode as BasedCfgNode

    class File(BasedCfgNode):
        @classmethod
        def _open_cfg(cls, filename):
            content = read_yaml(Path(filename))
            # by full key, so that a file replaces what it starts from however both write it
            values = flatten({name: value for name, value in content.items() if value is not None})
            return io.StringIO(yaml.safe_dump(values))

    try:
        return File.load_yaml_with_base(str(path))
    except (AttributeError, RecursionError):
        raise UserError(
            f"The configuration {path} cannot start from its _BASE_: it must name another file; correct it."
        ) from None


def read_yaml(path: Path) -> dict:
    """Sections of a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file {path} cannot be read ({error}); give another.") from None
    return parse_yaml(text, f"The file {path}")


class UniqueKeys(yaml.SafeLoader):
    """A safe loader that refuses a key that stands twice in one mapping, where PyYAML takes the last."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        names = [str(key.value) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"{name} stands twice in the section from line {line}")
        return node


def parse_yaml(text: str, what: str) -> dict:
    """Sections of a YAML text, {} for an empty one; `what` names it in messages."""
    try:
        content = yaml.load(text, UniqueKeys) or {}
        flatten(content if isinstance(content, dict) else {})
    except (yaml.YAMLError, ValueError) as error:  # PyYAML raises a ValueError for an invalid date
        reason = " ".join(str(error).split())
        raise UserError(f"{what} is not valid YAML ({reason}); correct it.") from None
    if not isinstance(content, dict):
        raise UserError(f"{what} holds no KEY: value pairs; correct it.")
    return content


def parse_pairs(opts: Sequence[str]) -> dict[str, str]:
    """Values by key of KEY VALUE and KEY=VALUE arguments: of a key that is repeated the last, of one without a value ''."""
    pairs, words = {}, iter(opts)
    for word in words:
        key, joined, value = word.partition("=")
        pairs[key] = value if joined else next(words, "")
    return pairs


def flatten(content: Mapping, prefix: str = "") -> dict[str, object]:
    """Values by full key of nested sections. Raises `ValueError` for a key that stands there in a section and with dots."""
    values: dict[str, object] = {}
    for name, value in content.items():
        full = f"{prefix}{name}"
        inner = flatten(value, f"{full}.") if isinstance(value, Mapping) else {full: value}
        if twice := values.keys() & inner:
            raise ValueError(f"{min(twice)} stands twice, in a section and with dots")
        values |= inner
    return values


def _nested(values: Mapping[str, object]) -> CfgNode:
    """A configuration from values by full key: the inverse of `flatten`. Lists are copied."""
    cfg = CfgNode()
    for name, value in values.items():
        *sections, leaf = name.split(".")
        node = cfg
        for section in sections:
            node = node.setdefault(section, CfgNode())
        node[leaf] = copy(value)
    return cfg


def other_settings(cfg: CfgNode, config: StoredText) -> dict[str, tuple[object, object]]:
    """The keys of a configuration that belong to a model, and have other values in the stored `config`: both values."""
    stored = config.values()
    return {
        key: (value, stored[key])
        for key, value in flatten(cfg).items()
        if key in FIXED or (key.startswith("MODEL.") and key not in WITHOUT_EFFECT)
        if value != stored.get(key, value)
    }


def _check_stored_score(name: str, place: StoredText) -> None:
    """Raise `UserError` where a file names a score whose module is not imported: files from elsewhere run no code."""
    module = name.partition(":")[0]
    if ":" in name and module not in sys.modules:
        raise UserError(
            f"{SCORE} of {place} is {name!r}, whose module is not imported, and a file imports none by "
            f"itself; give {SCORE} {name} on the command line, or import {module} before."
        )


def _check_values(schema: Schema, values: Mapping[str, object], source: object) -> dict:
    """`values` in the types of their keys, without keys that left. Raises `UserError` for unknown keys and values."""
    checked = {}
    for name, value in values.items():
        key = schema.by_name.get(name) or LEFT.get(name)
        if key is None:
            near = nearest_name(str(name).upper(), schema.by_name)
            raise UserError(f"Unknown key {name!r} in {source}{near}; --keys lists the valid ones.")
        value = _convert(key, value)
        if expected := key.expected(value):
            raise UserError(
                f"{name} in {source} is {value!r}, but it must be {expected} ({key.description})."
            )
        if name in schema.by_name:
            checked[name] = value
    return checked


def _convert(key: Key, value: object) -> object:
    """`value` in the type of the default where it can be, with the spellings of DeMo's files: "1e-4", ('0'), (40, 70), on."""
    kind = type(key.default)
    if isinstance(value, str):
        literal = _literal(value, kind)
        # For a text only a quoted literal such as "('0')" is unwrapped; 0, None and True remain texts.
        value = literal if kind is not str or isinstance(literal, str) else value
    if kind is str and isinstance(value, bool) and isinstance(key.allowed, tuple):
        # YAML reads an unquoted on, off, yes or no as a boolean.
        return next((text for text in key.allowed if yaml.safe_load(text) is value), value)
    return _like(key.default, value)


def _literal(text: str, kind: type) -> object:
    """The Python literal that a text holds, or the YAML for a key of another `kind` than text; otherwise the text."""
    with suppress(ValueError, SyntaxError, TypeError):
        return literal_eval(text)
    with suppress(yaml.YAMLError, ValueError):
        return text if kind is str else yaml.safe_load(text)
    return text


def _like(default: Any, value: Any) -> object:
    """A whole number as a float, a tuple as a list or a list as a tuple, where the default is one; and so their entries."""
    kind = type(default)
    if kind in (list, tuple) and isinstance(value, (list, tuple)):
        return kind(_like(default[0], each) if default else each for each in value)
    return float(value) if kind is float and type(value) is int else value
