"""A score of patches is one class: one from outside the project is named by module and class, and every command serves it."""

import json
import re
import sys

import pytest
import yaml
from commands import BASELINE, ROOT, call, cli_args_for
from tiny import tiny_cfg

from demo_sdtps.commands import evaluate
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.load import StoredText
from demo_sdtps.modeling.scores import make_score
from vit_slim import Score

PAGE = (ROOT / "docs" / "develop.md").read_text(encoding="utf-8")
(EXAMPLE,) = (
    example
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.S)
    if "class Contrast" in example
)
SLIM = ("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.5]", "MODEL.SLIM_SCORE")


@pytest.fixture(scope="module")
def run(tiny_root, tmp_path_factory):
    """A training with the example of docs/develop.md, a file outside the project → (words of its configuration, folder)."""
    folder = tmp_path_factory.mktemp("score")
    (folder / "contrast.py").write_text(EXAMPLE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        epochs = ("SOLVER.MAX_EPOCHS", "1", "SOLVER.WARMUP_ITERS", "0")
        opts = (*SLIM, "contrast:Contrast", *epochs, "SOLVER.EVAL_UNTRAINED", "True")
        words = cli_args_for(tiny_root, *opts, config=BASELINE)
        assert call([*words, "OUTPUT_DIR", folder / "run"]) == 0
        yield words, folder / "run"
    sys.modules.pop("contrast", None)


@pytest.mark.slow
def test_every_command_serves_a_score_from_outside(run, command, tmp_path, tiny_root):
    words, folder = run
    weights = ("--weight", folder / "last.pth", "DATASETS.ROOT_DIR", tiny_root)
    evaluated = [
        command(test_net.main, *weights, "--json", tmp_path / "all.json", "TEST.MISS", "all"),
        command(
            evaluate.draw_tokens, *weights, "--samples", 1, "--output", tmp_path / "tokens.png"
        ),
        command(evaluate.flops, *words),
    ]
    assert [(code, stderr) for code, _, stderr in evaluated] == [(0, "")] * len(evaluated)
    assert len(json.loads((tmp_path / "all.json").read_text())["cases"]) == 7


class Strange(Score):
    """With an operator that the profile has no rule for."""

    def score(self, tokens, context):
        return tokens.cumprod(dim=-1)[..., -1]


class Unsuited:
    """No score."""


class Noted(Strange):
    def __init__(self, width, grid, **settings):
        super().__init__(width, grid, **settings)
        self.settings = settings


def test_an_operator_without_a_rule_is_reported_and_not_counted(command, caplog):
    code, _, _ = command(evaluate.flops, *cli_args_for("nowhere", *SLIM, f"{__name__}:Strange"))
    assert code == 0 and "Not counted" in caplog.text and "aten::cumprod" in caplog.text


@pytest.mark.parametrize(
    ("name", "phrases"),
    [
        ("salincy", ["'salincy'", "the nearest is 'saliency'"]),
        ("nowhere:Score", ["'nowhere:Score'", "No module"]),
        (f"{__name__}:Unsuited", [f"'{__name__}:Unsuited'", "vit_slim.Score"]),
    ],
)
def test_an_unsuited_score_is_one_sentence_before_anything_is_written(
    refusal, tiny_root, name, phrases
):
    message = refusal(train_net.main, *cli_args_for(tiny_root, *SLIM, name, "OUTPUT_DIR", "run"))
    assert "\n" not in message and all(phrase in message for phrase in phrases)


def test_settings_reach_the_scores_by_their_names():
    cfg = tiny_cfg("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[0.4]")
    score = make_score(f"{__name__}:Noted", cfg, 24, (4, 2), ("RGB",))
    assert score.settings == {"keep": (0.4,), "names": ("RGB",)}


@pytest.mark.parametrize("name", ["nowhere:Score", r"'nowhere\x3aScore'"])
def test_a_stored_name_imports_no_module(tmp_path, name):
    """Also where it becomes one when its quotation marks are read."""
    text = yaml.safe_dump({"MODEL": {"SLIM_SCORE": name}})
    with pytest.raises(UserError, match="is not imported"):
        load_cfg(StoredText(tmp_path / "best.pth", text))


def test_a_checkpoint_imports_no_module_by_itself(run, command, tmp_path, tiny_root, monkeypatch):
    _, folder = run
    words = ("--weight", folder / "last.pth", "DATASETS.ROOT_DIR", tiny_root)
    monkeypatch.delitem(sys.modules, "contrast")
    code, _, stderr = command(test_net.main, *words)
    assert code == 2 and stderr.count("\n") == 1
    assert "'contrast:Contrast', whose module is not imported" in stderr
    assert command(test_net.main, *words, "MODEL.SLIM_SCORE", "contrast:Contrast")[0] == 0
