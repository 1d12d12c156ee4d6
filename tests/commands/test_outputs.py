"""What commands write: refused before any work where it would replace something."""

import pytest
from commands import CONFIG

from benchmarks import run as benchmark
from demo_sdtps.commands import convert_checkpoint, evaluate, export, search
from demo_sdtps.commands import test as test_net
from seps import __main__ as seps

CONFIGURED = ("--config_file", CONFIG)
SEARCHED = ("--query", "q", "--gallery", "g", "--csv", "x.csv")
EVALUATION = (*CONFIGURED, "--weight", "none.pth")
OUTPUTS = {
    "evaluation": (test_net, "x.json", (*EVALUATION, "--json", "x.json")),
    "evaluation of SEPS": (seps.test, "x.json", ("--weight", "none.pth", "--json", "x.json")),
    "features": (export.features, "x.npz", (*EVALUATION, "--output", "x.npz")),
    "numbers": (evaluate.analyse, "x.json", (*EVALUATION, "--json", "x.json")),
    "figure by default": (evaluate.draw_embedding, "embedding.png", EVALUATION),
    "checkpoint": (convert_checkpoint, "x.pth", ("none.pth", "x.pth", "--to", "ours")),
    "curves": (evaluate.draw_curves, "x.png", ("--run", "none", "--output", "x.png")),
    "report's page": (
        evaluate.report,
        "x.html",
        (*CONFIGURED, "--run", "none", "--html", "x.html"),
    ),
    "hits": (search, "x.csv", (*CONFIGURED, *SEARCHED)),
    "benchmark": (benchmark, "x.json", ("--json", "x.json")),
}
"""Every way to give an output: command, the file that is there, and words; weights, data and runs do not exist."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_exists_is_refused_before_any_work(refusal, tmp_path, name):
    command, file, words = OUTPUTS[name]
    (tmp_path / file).write_text("mine")
    message = refusal(getattr(command, "main", command), *words)
    assert f"{file} already exists; choose another, or pass --overwrite to replace it." in message
