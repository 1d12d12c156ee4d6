"""Runs with slimming: training by the commands, going on, two processes, and the sentence for every mistake."""

import json

import pytest
import torch
from commands import BASELINE, CONFIG, ONE_LINE, cli_args_for, load_records
from config_files import error
from interrupted import assert_same, at, call, kill

from demo_sdtps.commands import evaluate, export
from demo_sdtps.commands import test as test_net
from demo_sdtps.commands import train as train_net
from demo_sdtps.training.loop import Meter

SLIM = (
    "MODEL.SLIM_BLOCKS",
    "[0,1]",
    "MODEL.SLIM_KEEP",
    "[0.5,0.5]",
    "INPUT.JOINT_AUGMENTATION",
    "True",
)


def words(root, output, *more):
    return cli_args_for(
        root, *SLIM, "SOLVER.EVAL_UNTRAINED", "False", "OUTPUT_DIR", output, *more, config=BASELINE
    )


@pytest.mark.slow
def test_a_run_that_goes_on_ends_as_one_that_nobody_disturbed(tiny_root, tmp_path):
    """Heads and their optimiser's state are in the checkpoint; every command reads it."""
    more = [
        "MODEL.SLIM_SCORE",
        "self_supervised",
        "SOLVER.AMP",
        "bf16",
        "MODEL.GLOBAL_LOCAL",
        "True",
        "MODEL.DEPTH",
        "2",
    ]
    assert call(words(tiny_root, tmp_path / "reference", *more)) == 0
    with at(Meter, "update", 7, kill):
        assert call(words(tiny_root, tmp_path / "run", *more, "RESUME", "auto")) == 130
    assert call(words(tiny_root, tmp_path / "run", *more, "RESUME", "auto")) == 0
    assert_same(tmp_path / "reference", tmp_path / "run")

    weights = torch.load(tmp_path / "run" / "last.pth", weights_only=True)["model"]
    assert any(name.startswith("slimming.scores.1.heads.") for name in weights)
    flags = [
        "--weight",
        tmp_path / "run" / "last.pth",
        "DATASETS.ROOT_DIR",
        tiny_root,
        "TEST.AMP",
        "bf16",
    ]
    assert call([*flags, "--json", tmp_path / "all.json", "TEST.MISS", "all"], test_net.main) == 0
    cases = json.loads((tmp_path / "all.json").read_text())["cases"]
    assert len(cases) == 7 and len({json.dumps(record) for record in cases.values()}) > 1
    assert call([*flags, "--split", "query", "--output", tmp_path / "x.npz"], export.features) == 0
    assert call(words(tiny_root, tmp_path / "none", *more), evaluate.flops) == 0
    assert load_records(tmp_path / "run")[-1]["loss"] > 0


def slim(blocks, keep, *more):
    return ["MODEL.SLIM_BLOCKS", blocks, "MODEL.SLIM_KEEP", keep, *more]


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (slim("[2]", "[0.5, 0.5]"), "one share for each block"),
        (slim("[4, 2]", "[0.5, 0.5]"), "write [2, 4]"),
        (slim("[2]", "[1.2]"), "(0, 1]"),
    ],
)
def test_mistakes_in_the_configuration(opts, message):
    assert message in error(None, opts)


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (slim("[6]", "[0.5]"), "test_vit has 6 blocks"),
        (slim("[2, 4]", "[0.1, 0.1]"), "0.1 of 4 patches is less than one"),
    ],
)
def test_mistakes_that_the_backbone_shows(opts, message, command, tiny_root, tmp_path):
    words = cli_args_for(tiny_root, *opts, "OUTPUT_DIR", tmp_path / "run", config=CONFIG)
    code, stdout, stderr = command(train_net.main, *words)
    assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and message in stderr
    assert not (tmp_path / "run").exists()
