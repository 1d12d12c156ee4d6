"""Checked configuration from a YAML file, or its name, and KEY VALUE pairs. Every mistake is a `UserError` of one sentence."""

import difflib
import io
from ast import literal_eval
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import yaml
from fvcore.common.config import BASE_KEY
from fvcore.common.config import CfgNode as BasedCfgNode
from yacs.config import CfgNode

from demo_sdtps.config.check import check_cfg, check_stored_score
from demo_sdtps.config.common import WITHOUT_EFFECT
from demo_sdtps.config.keys import KEYS
from demo_sdtps.config.left import LEFT
from demo_sdtps.config.schema import Key, Schema
from demo_sdtps.runtime.errors import UserError, nearest_name

DEMO_SCHEMA = Schema(KEYS, check_cfg, "configs/RGBNT201/DeMo_SDTPS.yml")
"""Configuration of train_net.py and of all commands but those of SEPS."""
TYPE_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""YAML's spellings, which the command line accepts too."""
PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = next(
    (path for path in (PACKAGE / "configs", PACKAGE.parent / "configs") if path.is_dir()), PACKAGE
)
"""The published configurations: in an installed package inside it, in a checkout beside it."""
OWN = "Own"  # the folder in it for own data
ENDINGS = ("", ".yml", ".yaml")
FIXED = ("INPUT.SIZE_TEST", "INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD", "TEST.NECK_FEAT")
"""Keys beside those of MODEL whose values are part of the graph."""


class StoredText(NamedTuple):
    """Configuration stored in a checkpoint, as YAML text."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"the checkpoint {self.path}"


Source = str | Path | StoredText  # where values come from; messages name it


def get_cfg(schema: Schema = DEMO_SCHEMA) -> CfgNode:
    """New configuration with every key of `schema` at its default (names as in DeMo)."""
    cfg = CfgNode()
    for key in schema.keys:
        _put(cfg, key.name, list(key.default) if isinstance(key.default, list) else key.default)
    return cfg


def load_cfg(
    config: Source | None = None, opts: Sequence[str] = (), schema: Schema = DEMO_SCHEMA
) -> CfgNode:
    """Configuration of a run: defaults, then a file or a stored configuration, then KEY VALUE pairs; checked and frozen."""
    cfg, path, pairs = get_cfg(schema), Path("default.yml"), parse_pairs(opts)
    if isinstance(config, StoredText):
        values = flatten(parse_yaml(config.text, f"The configuration in {config}"))
        _merge(cfg, schema, values, config)
        if schema is DEMO_SCHEMA and "MODEL.SLIM_SCORE" not in pairs:
            check_stored_score(cfg.MODEL.SLIM_SCORE, config)
    elif config is not None:
        path = config_path(Path(config))
        _merge(cfg, schema, flatten(read_config(path, schema.example)), path)
    _merge(cfg, schema, pairs, "the command line")
    if not cfg.OUTPUT_DIR:
        cfg.OUTPUT_DIR = str(Path("runs") / path.resolve().parent.name / path.stem)
    schema.check(cfg)
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


def read_config(path: Path, example: str) -> dict:
    """Sections of a YAML file on those of its `_BASE_: file`, which fvcore reads; a section whose keys are all commented out
    changes none."""

    class File(BasedCfgNode):
        @classmethod
        def _open_cfg(cls, filename):
            advice = f"give --config_file an existing YAML file such as {example}"
            content = read_yaml(Path(filename), "configuration", advice)
            # by full key, so that a file replaces what it starts from however both write it
            sections = {k: v for k, v in content.items() if v is not None}
            return io.StringIO(yaml.dump(flatten(sections), Dumper=SafeDumper))

    try:
        return File.load_yaml_with_base(str(path))
    except (AssertionError, AttributeError, RecursionError) as error:
        reasons = {RecursionError: "it starts from itself", AttributeError: "it must name a file"}
        reason = reasons.get(type(error), error)
        raise UserError(
            f"The configuration {path} cannot start from its {BASE_KEY} ({reason}); correct these lines."
        ) from None


def read_yaml(path: Path, kind: str, advice: str) -> dict:
    """Sections of a YAML file. In messages `kind` names the file ("configuration") and `advice` an alternative."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The {kind} {path} cannot be read ({getattr(error, 'strerror', None) or error}); {advice}."
        ) from None
    return parse_yaml(text, f"The {kind} {path}")


SafeLoader, SafeDumper = (
    getattr(yaml, f"CSafe{name}", getattr(yaml, f"Safe{name}")) for name in ("Loader", "Dumper")
)
"""In C, where PyYAML has them."""


class UniqueKeys(SafeLoader):  # type: ignore[misc, valid-type]
    """A safe loader that refuses a key that stands twice in one mapping, where PyYAML takes the last."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        keys: dict[str, yaml.Node] = {}
        # once, as it adds the keys of a `<<`, which may stand here too
        for key, _ in node.value if id(node) not in self.checked else ():
            if (first := keys.setdefault(str(key.value), key)) is not key:
                lines = [each.start_mark.line + 1 for each in (first, key)]
                raise yaml.YAMLError(f"{key.value} stands in lines {lines[0]} and {lines[1]}")
        self.checked.add(id(node))
        super().flatten_mapping(node)


def parse_yaml(text: str, what: str) -> dict:
    """Sections of a YAML text, {} for an empty one; `what` names it in messages."""
    try:
        content = yaml.load(text, UniqueKeys)
        flatten(content if isinstance(content, dict) else {})  # refuses what cannot be
    except (yaml.YAMLError, ValueError) as error:  # PyYAML raises a ValueError for an invalid date
        raise UserError(
            f"{what} is not valid YAML ({' '.join(str(error).split())}); correct it."
        ) from None
    if not isinstance(content, dict | None):
        raise UserError(f"{what} holds no KEY: value pairs; correct it, or give another.")
    return content or {}


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


def with_values(cfg: CfgNode, values: Mapping[str, object]) -> CfgNode:
    """Frozen copy of a configuration with other values of some keys."""
    cfg = cfg.clone()
    cfg.defrost()
    for name, value in values.items():
        _put(cfg, name, value)
    cfg.freeze()
    return cfg


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


def other_settings(cfg: CfgNode, config: StoredText) -> dict[str, tuple[object, object]]:
    """The keys of a configuration that belong to a model, and have other values in the stored `config`: both values."""
    stored = flatten(parse_yaml(config.text, f"The configuration in {config}"))
    return {
        key: (value, stored[key])
        for key, value in flatten(cfg).items()
        if key in FIXED or (key.startswith("MODEL.") and key not in WITHOUT_EFFECT)
        if value != stored.get(key, value)
    }


def _merge(cfg: CfgNode, schema: Schema, values: Mapping[str, object], source: Source) -> None:
    for name, value in values.items():
        if name in LEFT and name not in schema.by_name:
            _check_left(name, value, source)
            continue
        if name not in schema.by_name:
            raise UserError(f"Unknown key {name!r} in {source}; {_advice(schema, name, source)}.")
        _put(cfg, name, _check_value(schema.by_name[name], value, source))


def _check_left(name: str, value: object, source: Source) -> None:
    """Raise `UserError` where a key that left has another value than its old default."""
    default, instead = LEFT[name]
    value = _coerce(Key(name, default, instead), value)
    if value == default and type(value) is type(default):
        return
    where = "give --config_file a configuration without it"
    leave_out = where if isinstance(source, StoredText) else "leave it out"
    raise UserError(
        f"{name} in {source} is {value!r}, but only {default!r} is accepted, as this version has no such key; {leave_out}: "
        f"{instead}."
    )


def _advice(schema: Schema, name: str, source: Source) -> str:
    """What to do about an unknown key."""
    if isinstance(source, StoredText):
        return "it belongs to another command or version; give --config_file the one of this"
    near = difflib.get_close_matches(name.upper(), schema.by_name, n=1, cutoff=0.5)
    return f"the nearest valid key is {near[0]}" if near else "--keys lists the valid ones"


def _put(cfg: CfgNode, name: str, value: object) -> None:
    *sections, leaf = name.split(".")
    for section in sections:
        cfg = cfg.setdefault(section, CfgNode())
    cfg[leaf] = value


def _check_value(key: Key, value: object, source: Source) -> object:
    """`value` in the type of the key's default."""
    value = _coerce(key, value)
    wrong = f"{key.name} in {source} is {value!r}, but it must be"
    if type(value) is not type(key.default):
        kind = TYPE_NAMES.get(type(key.default), "a list")
        raise UserError(f"{wrong} {kind} such as {key.default!r}; it is: {key.description}.")
    if isinstance(key.allowed, tuple) and value not in key.allowed:
        why = f" ({key.allowed_text})" if key.allowed_text else nearest_name(value, key.allowed)
        raise UserError(f"{wrong} {' or '.join(map(repr, key.allowed))}{why}.")
    if callable(key.allowed) and not key.allowed(value):
        raise UserError(f"{wrong} {key.allowed_text}.")
    return value


def _coerce(key: Key, value: object) -> object:
    """`value` in the type of the default where it can be, with the spellings of DeMo's files: "1e-4", ('0'), (40, 70), on."""
    kind: type = type(key.default)
    choices = key.allowed if isinstance(key.allowed, tuple) else ()
    literal = _literal(value)
    # For a text only a quoted literal such as "('0')" is unwrapped; 0, None and True remain texts.
    if kind is not str or isinstance(literal, str):
        value = literal
    truth = BOOLEANS.get(str(value).lower())
    if kind is bool and truth is not None:
        return truth
    if kind is str and truth is not None and value not in choices:
        # YAML reads an unquoted on, off, yes or no as a boolean.
        return next((text for text in choices if BOOLEANS.get(text) is truth), value)
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
