"""What each part imports of the others: synthetic, studies and benchmarks → seps → demo_sdtps → vit_slim, and none back."""

import ast

import pytest
from commands import ROOT

PARTS = ("vit_slim", "demo_sdtps", "seps", "synthetic", "benchmarks", "studies", "tools", "tests")
"""Each may import those before it."""


def imported(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name.split(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("part", ["vit_slim", "demo_sdtps", "seps", "synthetic"])
def test_nothing_is_imported_from_a_later_part(part):
    later = {*PARTS[PARTS.index(part) + 1 :]}
    files = [*(ROOT / part).rglob("*.py")]
    wrong = {file.relative_to(ROOT).as_posix(): later & {*imported(file)} for file in files}
    assert files and not [name for name, parts in wrong.items() if parts]
