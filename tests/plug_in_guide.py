"""Reads the steps of docs/plug_in.md and applies them to a source at the places that they name."""
import ast
import re
import shutil
import textwrap
from typing import NamedTuple

from tiny import ROOT

GUIDE = ROOT / "docs" / "plug_in.md"
HOST = ROOT / "tests" / "reference" / "demo_host"
MODEL_FILE = "modeling/make_model.py"
STEP = re.compile(r"### (\d)\. `([^`]+)`(?:, (training|evaluation))?: ([^\n]+)\n\n```\w+\n(.+?)\n```", re.S)


class Step(NamedTuple):
    """One change: the file, the half of DeMo.forward (or ''), the place in it in words, and the code."""

    file: str
    half: str
    place: str
    code: str


def read_guide():
    """The steps of the guide by their number, and its example of a configuration."""
    text = GUIDE.read_text(encoding="utf-8")
    steps = {int(number): Step(file, half, place, code) for number, file, half, place, code in STEP.findall(text)}
    assert list(steps) == list(range(1, text.count("\n### ") + 1)), "a step without a file, a place or code"
    return steps, re.search(r"```yaml\n(.+?)```", text, re.S)[1]


def apply(source, step):
    """`source` with the change of `step` made at the place that it names."""
    lines = source.splitlines()
    tree = ast.parse(source)
    methods = {f"{owner.name}.{method.name}": method for owner in tree.body if isinstance(owner, ast.ClassDef)
               for method in owner.body if isinstance(method, ast.FunctionDef)}
    scope = half_of(methods["DeMo.forward"], step.half) if step.half else []
    if step.place == "in every `return`":
        start = step.code.removesuffix("…")
        returns = [node for statement in scope for node in ast.walk(statement) if isinstance(node, ast.Return)]
        assert returns
        for node in returns:
            line = lines[node.lineno - 1]
            assert line[node.col_offset:].startswith("return ")
            lines[node.lineno - 1] = line[:node.col_offset] + start + line[node.col_offset:].removeprefix("return ")
        return "\n".join(lines) + "\n"

    quoted = re.search("`(.+)`", step.place)[1]
    if step.place == f"at the end of `{quoted}`":
        after, indent = methods[quoted].end_lineno, methods[quoted].body[-1].col_offset
    elif step.place == f"after the block `{quoted}`":
        block = next(statement for statement in scope if lines[statement.lineno - 1].strip() == quoted)
        after, indent = block.end_lineno, block.col_offset
    elif step.place in (f"after the line with `{quoted}`", f"before the line with `{quoted}`"):
        index = next(index for index, line in enumerate(lines) if quoted in line)
        after, indent = index + step.place.startswith("after"), len(lines[index]) - len(lines[index].lstrip())
    else:
        raise AssertionError(f"a place that the test does not understand: {step.place}")
    lines[after:after] = textwrap.indent(step.code, indent * " ").splitlines()
    return "\n".join(lines) + "\n"


def half_of(forward, half):
    branch, = (node for node in forward.body if isinstance(node, ast.If) and ast.unparse(node.test) == "self.training")
    return {"training": branch.body, "evaluation": branch.orelse}[half]


def change(checkout):
    """Make the guide's changes in a copy of HOST, beside whose model the untouched one is written; → its example of a
    configuration."""
    steps, example = read_guide()
    copied = steps.pop(1)
    source, target = (word.partition("/")[2] for word in copied.code.split()[1:])
    assert (copied.place, target) == ("copy the file", copied.file)
    shutil.copy(ROOT / source, checkout / target)

    other = {step for step in steps.values() if step.file != MODEL_FILE}
    for step in other:
        (checkout / step.file).write_text(apply((checkout / step.file).read_text(), step))
    steps = {number: step for number, step in steps.items() if step not in other}
    source = (HOST / MODEL_FILE).read_text()
    (checkout / "modeling" / "untouched.py").write_text(source)
    for step in steps.values():
        source = apply(source, step)
    (checkout / MODEL_FILE).write_text(source)
    return example
