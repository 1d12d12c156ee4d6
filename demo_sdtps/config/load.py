"""Checked configuration from a YAML file, or its name, and KEY VALUE pairs. Every mistake is a `UserError` of one sentence."""

import io
import sys
from ast import literal_eval
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import NamedTuple

import yaml
from fvcore.common.config import BASE_KEY
from fvcore.common.config import CfgNode as BasedCfgNode
from yacs.config import CfgNode

from demo_sdtps.config.common import WITHOUT_EFFECT
from demo_sdtps.config.keys import DEMO_SCHEMA
from demo_sdtps.config.left import LEFT
from demo_sdtps.config.schema import Key, Schema, Values
from demo_sdtps.runtime.errors import UserError, nearest_name

BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""YAML's spellings, which the command line accepts too."""
PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
"""The published configurations: in an installed package inside it, in a checkout beside it."""
OWN = "Own"  # the folder in it for own data
ENDINGS = ("", ".yml", ".yaml")
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


Source = str | Path | StoredText  # where values come from; messages name it


def get_cfg(schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """New configuration with every key of `schema` at its default (names as in DeMo)."""
    return _nested({key.name: key.default for key in schema.keys})


def load_cfg(
    config: Source | None = None, opts: Sequence[str] = (), schema: Schema = DEMO_SCHEMA
) -> CfgNode:
    """Configuration of a run: defaults, then a file or a stored configuration, then KEY VALUE pairs; checked and frozen."""
    path, pairs, values = Path("default.yml"), parse_pairs(opts), flatten(get_cfg(schema))
    if isinstance(config, StoredText):
        stored = config.values()
        if SCORE not in pairs:
            _check_stored_score(str(stored.get(SCORE)), config)
        values |= _check_values(schema, stored, config)
    elif config is not None:
        path = config_path(Path(config))
        values |= _check_values(schema, read_config(path, schema.example), path)
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


def config_path(path: Path) -> Path:
    """`path`, or where it does not exist, that of the package: RGBNT201/DeMo_SDTPS, with or without configs/ and .yml."""
    folders = (Path(), CONFIGS, CONFIGS.parent)
    candidates = (folder / f"{path}{ending}" for ending in ENDINGS for folder in folders)
    return next((candidate for candidate in candidates if candidate.is_file()), path)


def published() -> dict[str, Path]:
    """The published configurations by name, such as RGBNT201/DeMo."""
    paths = sorted(CONFIGS.glob("*/*.yml"))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in paths}


def config_names() -> list[str]:
    """Names of the published configurations, with and without their folders."""
    return sorted({*published(), *(path.stem for path in published().values())})


def is_key(word: str, schema: Schema) -> bool:
    """Whether the first word after a command is a key, with its value or without, and not the name of a configuration."""
    return "=" in word or word in schema.by_name or Path(word).suffix not in ENDINGS


def find_config(name: str, data: str | None, kinds: Collection[str], schema: Schema) -> Path:
    """The file of a configuration. A name without a folder that several folders have is that of the data: `kinds` are the
    names of the folders for what `data` holds."""
    if (path := config_path(Path(name))).is_file():
        return path
    same = {key: path for key, path in published().items() if name in (path.stem, path.name)}
    if not same:
        known = [*config_names(), *schema.by_name]
        raise UserError(
            f"There is no configuration {name!r}{nearest_name(name, known)}; give another name or a YAML file."
        )
    fitting = [key for key, path in same.items() if path.parent.name in kinds]
    if len(chosen := fitting or [*same]) == 1:
        return same[chosen[0]]
    why = f"{data} has the data of {' and '.join(fitting) or 'none of them'}" if data else ""
    raise UserError(
        f"The name {name} is that of several configurations: {', '.join(same)}; "
        f"{why or 'give --data the folder of the data'}, or write one of these names."
    )


def read_config(path: Path, example: str) -> dict[str, object]:
    """Values by full key of a YAML file on those of its `_BASE_: file`, which fvcore reads; a section whose keys are all
    commented out changes none."""

    class File(BasedCfgNode):
        @classmethod
        def _open_cfg(cls, filename):
            advice = f"give --config_file an existing YAML file such as {example}"
            content = read_yaml(Path(filename), "configuration", advice)
            # by full key, so that a file replaces what it starts from however both write it
            values = flatten({name: value for name, value in content.items() if value is not None})
            return io.StringIO(yaml.safe_dump(values))

    try:
        return File.load_yaml_with_base(str(path))
    except (AttributeError, RecursionError):
        raise UserError(
            f"The configuration {path} cannot start from its {BASE_KEY}: it must name another file; correct it."
        ) from None


def read_yaml(path: Path, kind: str, advice: str) -> dict:
    """Sections of a YAML file. In messages `kind` names the file ("configuration") and `advice` an alternative."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The {kind} {path} cannot be read ({error}); {advice}.") from None
    return parse_yaml(text, f"The {kind} {path}")


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
        flatten(content)  # refuses what cannot be
    except (yaml.YAMLError, ValueError) as error:  # PyYAML raises a ValueError for an invalid date
        reason = " ".join(str(error).split())
        raise UserError(f"{what} is not valid YAML ({reason}); correct it.") from None
    except AttributeError:
        raise UserError(f"{what} holds no KEY: value pairs; correct it.") from None
    return content


def parse_pairs(opts: Sequence[str]) -> dict[str, str]:
    """Values by key of KEY VALUE and KEY=VALUE arguments; of a key that is repeated the last."""
    pairs, words = {}, iter(opts)
    for word in words:
        key, joined, value = word.partition("=")
        if not joined:
            value = next(words, "=")
        if (joined and not value) or str(value).startswith("="):
            raise UserError(
                f"The option {key!r} has no value, or a space beside its =; write KEY VALUE or KEY=VALUE."
            )
        pairs[key] = value
    return pairs


def flatten(content: Mapping, prefix: str = "") -> dict[str, object]:
    """Values by full key of nested sections. Raises `ValueError` for a key that stands in its section and with its name."""
    values: dict[str, object] = {}
    for name, value in content.items():
        full = f"{prefix}{name}"
        more = flatten(value, f"{full}.") if isinstance(value, Mapping) else {full: value}
        if repeated := values.keys() & more.keys():
            raise ValueError(f"{min(repeated)} stands twice, in a section and by its full name")
        values |= more
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


def _check_values(schema: Schema, values: Mapping[str, object], source: Source) -> dict:
    """`values` in the types of their keys, without those of keys that left."""
    checked = {}
    for name, value in values.items():
        if name not in schema.by_name and name not in LEFT:
            near = nearest_name(str(name).upper(), schema.by_name)
            raise UserError(f"Unknown key {name!r} in {source}{near}; --keys lists the valid ones.")
        key = schema.by_name.get(name) or LEFT[name]
        checked[name] = _check_value(key, value, source)
    return {name: value for name, value in checked.items() if name in schema.by_name}


def _check_value(key: Key, value: object, source: Source) -> object:
    """`value` in the type of the key's default. Raises `UserError` for one that the key does not allow."""
    value, allowed = _convert(key, value), key.allowed
    if type(value) is not type(key.default):
        expected = f"a value such as {key.default!r}"
    elif isinstance(allowed, Values) and not allowed.allows(value):
        expected = allowed.text
    elif isinstance(allowed, tuple) and value not in allowed:
        expected = f"{' or '.join(map(repr, allowed))}{nearest_name(value, allowed)}"
    else:
        return value
    raise UserError(
        f"{key.name} in {source} is {value!r}, but it must be {expected} ({key.description})."
    )


def _convert(key: Key, value: object) -> object:
    """`value` in the type of the default where it can be, with the spellings of DeMo's files: "1e-4", ('0'), (40, 70), on."""
    kind: type = type(key.default)
    literal = _literal(value)
    # For a text only a quoted literal such as "('0')" is unwrapped; 0, None and True remain texts.
    if kind is not str or isinstance(literal, str):
        value = literal
    truth = BOOLEANS.get(str(value).lower())
    if kind is bool and truth is not None:
        return truth
    if kind is str and truth is not None and isinstance(key.allowed, tuple):
        # YAML reads an unquoted on, off, yes or no as a boolean.
        choices = (text for text in key.allowed if BOOLEANS.get(text) is truth)
        return value if value in key.allowed else next(choices, value)
    if kind is float and type(value) is int:
        return float(value)
    return kind(value) if kind in (list, tuple) and isinstance(value, list | tuple) else value


def _literal(value: object) -> object:
    """The Python literal or YAML list that a text holds, or `value`."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError, SyntaxError, TypeError):
        return literal_eval(value)
    with suppress(yaml.YAMLError, ValueError):
        # a list of texts without quotes
        return yaml.safe_load(value) if value[:1] + value[-1:] == "[]" else value
    return value
