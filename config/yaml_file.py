"""Safe reading of YAML from users: plain values only, of limited size. Every mistake is a `UserError`."""
from collections.abc import Mapping
from pathlib import Path

import yaml

from demo_sdtps.config.common import UserError

MOST_BYTES, MOST_VALUES = 1 << 20, 10_000  # largest size of a file in bytes, and largest number of values


class _Loader(yaml.SafeLoader):
    """Plain values only, without code execution; a duplicate key in a section is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} comes twice in its section", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, kind: str, advice: str) -> dict:
    """Sections of a YAML file. In messages `kind` names the file ("configuration") and `advice` an alternative."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The {kind} {path} cannot be read ({getattr(error, 'strerror', None) or error}); {advice}.") from None
    return parse_yaml(text, f"The {kind} {path}", "correct it there", advice)


def parse_yaml(text: str, what: str, repair: str, advice: str) -> dict:
    """Sections of a YAML text, {} for an empty one.

    A message begins with `what` and ends with `repair`, or with `advice` where the text is no YAML mapping at all.
    """
    if len(text) > MOST_BYTES:
        raise UserError(f"{what} is larger than {MOST_BYTES} characters, far more than a configuration needs; {advice}.")
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{what} is not valid YAML{line}: {reason}; {repair}.") from None
    # Nested too deep, or an invalid date, number or truth value, for which yaml raises many types.
    except (RecursionError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        raise UserError(f"{what} holds a value that YAML cannot read ({error}); {repair}.") from None
    if _is_too_much(content):
        raise UserError(f"{what} has a section that contains itself, or over {MOST_VALUES} values (YAML aliases); {repair}.")
    if content is None:  # an empty file
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{what} holds no KEY: value pairs; {advice}.")
    return content


def _is_too_much(content: object) -> bool:
    """Whether there are more than MOST_VALUES values; aliases can make infinitely many of a few lines."""
    count, remaining = 1, [content]
    while remaining and count <= MOST_VALUES:
        value = remaining.pop()
        if isinstance(value, Mapping | list):
            count += len(value)
            remaining += value.values() if isinstance(value, Mapping) else value
    return count > MOST_VALUES
