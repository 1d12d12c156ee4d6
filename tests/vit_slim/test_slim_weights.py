"""Slimming (MODEL.SLIM_BLOCKS) of checkpoints that were trained without it, or with other settings, by test_net.py."""

import json

import pytest
import torch
from commands import BASELINE, ONE_LINE, cli_args_for, read_cases

from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.checkpoints.loading import read_checkpoint
from demo_sdtps.modeling.checkpoints.names import to_demo
from demo_sdtps.modeling.demo import make_model

STAGES = ("MODEL.SLIM_BLOCKS", "[1,3]", "MODEL.SLIM_KEEP", "[0.5,0.5]")
LEARNED = "learned:Learned"
ONE_STAGE = ("MODEL.SLIM_BLOCKS", "[2]", "MODEL.SLIM_KEEP", "[0.5]")


def score(name):
    return ("MODEL.SLIM_SCORE", name)


@pytest.fixture
def checkpoint(tiny_root, tmp_path):
    """A file with random weights of a configuration, as train_net.py writes it, or under DeMo's names alone; → its path."""

    def write(*opts, demo=False):
        words = cli_args_for(tiny_root, *opts, config=BASELINE)
        cfg = load_cfg(BASELINE, words[2:])
        torch.manual_seed(0)
        weights, path = make_model(cfg, 6, 4).state_dict(), tmp_path / "weights.pth"
        ours = {"model": weights, "dataset": "RGBNT201", "config": cfg.dump()}
        torch.save(to_demo(weights) if demo else ours, path)
        return path

    return write


@pytest.fixture
def evaluate(command, tiny_root, tmp_path):
    """Call test_net.py with a checkpoint; → exit code, record, stderr."""

    def call(weights, *opts):
        actual = tmp_path / "evaluation.json"
        words = ("--weight", weights, "--overwrite", "--json", actual)
        given = cli_args_for(tiny_root, *opts, config=BASELINE)
        code, _, stderr = command(test_net.main, *given, *words)
        return code, read_cases(actual)["None"] if code == 0 else None, stderr

    return call


@pytest.mark.parametrize("demo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dense_checkpoint_is_slimmed_by_scores_without_weights(checkpoint, evaluate, demo):
    weights = checkpoint(demo=demo)
    names = ("studies.baselines:EViT", "saliency")
    cases = {
        "dense": (),
        "all kept": ("MODEL.SLIM_BLOCKS", "[1]", "MODEL.SLIM_KEEP", "[1.0]"),
        **{name: (*STAGES, *score(name)) for name in names},
    }
    records = {name: evaluate(weights, *opts)[:2] for name, opts in cases.items()}
    assert all(code == 0 for code, _ in records.values())
    assert records["all kept"] == records["dense"]
    assert len({json.dumps(record) for _, record in records.values()}) >= 3


def test_a_dense_checkpoint_has_no_weights_of_a_score(checkpoint, evaluate):
    weights = checkpoint(demo=True)
    code, _, stderr = evaluate(weights, *STAGES, *score(LEARNED))
    assert code == 2 and stderr.startswith(ONE_LINE) and stderr.count("\n") == 1
    assert f"The weights {weights} do not fit" in stderr and "slimming.scores.0." in stderr


@pytest.mark.parametrize("opts", [(), (*ONE_STAGE, *score("saliency"))])
def test_a_trained_score_that_is_not_used_is_left_out_with_a_warning(
    checkpoint, evaluate, caplog, opts
):
    path = checkpoint(*STAGES, *score(LEARNED))
    with_score = evaluate(path, *opts)
    assert "so it is left out" in caplog.text and len(caplog.records) == 1
    weights = read_checkpoint(path).model
    backbone = {name: weights[name] for name in weights if not name.startswith("slimming.")}
    torch.save({"model": backbone, "dataset": "RGBNT201"}, path)
    assert with_score[:2] == evaluate(path, *opts)[:2]


def test_stages_that_the_backbone_does_not_have(refusal, tiny_root):
    opts = ("MODEL.SLIM_BLOCKS", "[6]", "MODEL.SLIM_KEEP", "[0.5]", "OUTPUT_DIR", "run")
    assert "MODEL.SLIM_BLOCKS" in refusal(train_net.main, *cli_args_for(tiny_root, *opts))
