"""The examples of docs/slim.md and of help(demo_sdtps.slim), as printed: each on a randomly initialised model."""

import re

import pytest
import torch
from commands import ROOT
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import demo_sdtps

PAGE = (ROOT / "docs" / "slim.md").read_text(encoding="utf-8")
HELP = "".join(re.findall(r">>> (.*\n)", demo_sdtps.slim.__doc__))
EXAMPLES = [*re.findall(r"```python\n(.*?)```", PAGE, re.S), HELP]


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(text, marks=[pytest.mark.slow] * (place > 0))
        for place, text in enumerate(EXAMPLES)
    ],
    ids=lambda text: re.findall(r"import (\w+)", text)[-1],
)
def test_an_example_runs_as_printed(example):
    torch.manual_seed(0)
    names = {}
    called: list[nn.Module] = []
    handle = register_module_forward_hook(lambda module, args, output: called.append(module))
    exec(example, names)
    handle.remove()
    model = names["model"]
    outputs = [value for value in names.values() if isinstance(value, torch.Tensor)]
    assert isinstance(model, nn.Module) and all(value.isfinite().all() for value in outputs)
    assert model.slimming in called  # a stage has run
    demo_sdtps.unslim(model)
    assert not hasattr(model, "slimming")


def test_every_argument_of_the_page_exists():
    named = set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", PAGE, re.M))
    arguments = {name for row in named for name in row if name}
    assert arguments == set(demo_sdtps.slim.__annotations__) - {"model", "return"}
