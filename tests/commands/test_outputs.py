"""What commands write: refused before any work where it would replace something."""

import pytest
import seps_tiny
import yaml
from commands import CONFIG, ONE_LINE, cases_of, cli_args_for, contents, weights_file

from benchmarks import run as benchmark
from demo_sdtps.commands import (
    analyse,
    convert_checkpoint,
    draw_attention,
    draw_curves,
    draw_embedding,
    draw_ranks,
    draw_tokens,
    export_features,
    rank_features,
    report,
    search,
    selection_quality,
    slim_curve,
    test_seps,
)
from demo_sdtps.commands import test as test_net
from demo_sdtps.config import load_cfg
from tools import study

EVALUATIONS = {
    "test_net": (test_net.main, "--json", ".json"),
    "export_features": (export_features.main, "--output", ".npz"),
    "draw_attention": (draw_attention.main, "--output", ".png"),
    "draw_embedding": (draw_embedding.main, "--output", ".png"),
    "draw_ranks": (draw_ranks.main, "--output", ".png"),
    "draw_tokens": (draw_tokens.main, "--output", ".png"),
    "selection_quality": (selection_quality.main, "--json", ".json"),
    "slim_curve": (slim_curve.main, "--json", ".json"),
    "slim_curve's image": (slim_curve.main, "--output", ".png"),
    "analyse": (analyse.main, "--json", ".json"),
    "analyse's image": (analyse.main, "--output", ".png"),
    "test_seps": (test_seps.main, "--json", ".json"),
}
OTHERS = {
    "convert_checkpoint": (
        convert_checkpoint.main,
        "x.pth",
        lambda path: ["none.pth", path, "--to", "ours"],
    ),
    "draw_curves": (draw_curves.main, "x.png", lambda path: ["--run", "none", "--output", path]),
    "draw_curves by default": (draw_curves.main, "curves.png", lambda path: ["--run", path.parent]),
    "report": (
        report.main,
        "tokens.png",
        lambda path: ["--config_file", CONFIG, "OUTPUT_DIR", path.parent],
    ),
    "report's page": (
        report.main,
        "x.html",
        lambda path: ["--config_file", CONFIG, "OUTPUT_DIR", path.parent / "none", "--html", path],
    ),
    "search": (
        search.main,
        "x.csv",
        lambda path: ["--config_file", CONFIG, "--gallery", "g", "--query", "q", "--csv", path],
    ),
    "rank_features": (
        rank_features.main,
        "x.csv",
        lambda path: ["--query", "q", "--gallery", "g", "--csv", path],
    ),
    "benchmark": (benchmark.main, "x.json", lambda path: ["--json", path]),
    "study": (
        study.main,
        "study.md",
        lambda path: [study_file(path.parent), "--output", path.parent],
    ),
}


def study_file(folder):
    path = folder / "one.yml"
    path.write_text(yaml.safe_dump({"config": str(CONFIG), "variants": {"one": {}}}))
    return path


def evaluation(name, root, path):
    """Words of an evaluation that writes `path`, of weights that do not exist."""
    words = seps_tiny.cli_args_for(root) if name == "test_seps" else cli_args_for(root)
    return [*words, "--weight", "none.pth", EVALUATIONS[name][1], path]


@pytest.fixture
def refusal(command):
    """Call a command, which must end with one sentence before it has read or written anything: → that sentence."""

    def call(folder, main, words):
        before = contents(folder)
        code, stdout, stderr = command(main, *words)
        assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1
        assert contents(folder) == before
        return stderr

    return call


@pytest.mark.parametrize("name", [*EVALUATIONS, *OTHERS])
def test_an_output_that_exists_is_refused_before_any_work(refusal, tmp_path, name):
    """The weights, data and runs do not exist, which would be reported later."""
    if name in EVALUATIONS:
        main, _, suffix = EVALUATIONS[name]
        path = tmp_path / f"x{suffix}"
        words = evaluation(name, tmp_path, path)
    else:
        main, file, words_for = OTHERS[name]
        path = tmp_path / file
        words = words_for(path)
    path.write_text("mine")
    said = refusal(tmp_path, main, words)
    assert (
        f"The output {path} already exists; choose another, or pass --overwrite to replace it."
        in said
    )


def test_overwrite_replaces_an_output(tiny_root, command, tmp_path):
    path, words = tmp_path / "x.json", cli_args_for(tiny_root)
    words += ["--weight", weights_file(tmp_path / "w.pth", load_cfg(CONFIG, words[2:]))]
    path.write_text("old")
    code, _, stderr = command(test_net.main, *words, "--json", path, "--overwrite")
    assert code == 0 and list(cases_of(path)) == ["None"], stderr
