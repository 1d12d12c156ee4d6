"""The one door for YAML from users: plain values alone, of a size that can be handled. Every mistake is a `UserError`."""
from collections.abc import Mapping
from pathlib import Path

import yaml

from demo_sdtps.config.common import UserError

MOST_BYTES, MOST_VALUES = 1 << 20, 10_000
"""Of a file, and of the values in it."""


class _Loader(yaml.SafeLoader):
    """Plain values alone, which nothing runs for; a key that comes twice in a section is refused, not overwritten."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen if isinstance(key, yaml.ScalarNode) else False:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} comes twice in its section", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, kind: str, advice: str) -> dict:
    """The sections of a YAML file. `kind` says what the file is ("configuration"), `advice` what to give in its place."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The {kind} {path} cannot be read ({getattr(error, 'strerror', None) or error}); {advice}.") from None
    return parse_yaml(text, f"The {kind} {path}", "correct it there", advice)


def parse_yaml(text: str, what: str, repair: str, advice: str) -> dict:
    """The sections of a YAML text, {} where it is empty. `what` begins the sentence for a mistake; it ends with `repair`, or,
    where the text is no such thing at all, with `advice`."""
    if len(text) > MOST_BYTES:
        raise UserError(f"{what} is larger than {MOST_BYTES} characters, far more than is ever needed; {advice}.")
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{what} is not valid YAML{line}: {reason}; {repair}.") from None
    # Too deep, or what is said to be a date, a number or a truth value and is none: yaml's own types raise what they meet.
    except (RecursionError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        raise UserError(f"{what} holds a value that YAML cannot read ({error}); {repair}.") from None
    if _is_too_much(content):
        raise UserError(f"{what} has a section that holds itself, or more than {MOST_VALUES} values (YAML aliases); {repair}.")
    if content is None:  # an empty file
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{what} holds no KEY: value pairs; {advice}.")
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
