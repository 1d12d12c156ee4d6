"""Configuration keys of whole runs: train_net.py on the tiny data set."""

import math
from unittest import mock

import pytest
import torch
from commands import cli_args_for, load_records
from numeric import tolerance

from demo_sdtps.commands import train as train_net
from demo_sdtps.config import load_cfg
from demo_sdtps.evaluation.extraction import load_model_and_data
from demo_sdtps.evaluation.metrics import Ranking
from demo_sdtps.training import reid
from demo_sdtps.training.optim import make_optimizer

pytestmark = pytest.mark.usefixtures("shallow")


@pytest.fixture
def train(tiny_root, tmp_path, command):
    def run(*opts):
        words = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path, "--overwrite", *opts)
        assert command(train_net.main, *words)[0] == 0
        return tmp_path

    return run


@pytest.mark.parametrize(
    ("opts", "epochs"),
    [
        pytest.param(
            "SOLVER.MAX_EPOCHS 1 SOLVER.EVAL_UNTRAINED False", [1], marks=pytest.mark.slow
        ),
        ("SOLVER.MAX_EPOCHS 1 SOLVER.EVAL_UNTRAINED True", [0, 1]),
        ("SOLVER.MAX_EPOCHS 3 SOLVER.EVAL_PERIOD 2 SOLVER.EVAL_UNTRAINED False", [2, 3]),
    ],
)
def test_epochs_with_an_evaluation(train, opts, epochs):
    records = load_records(train(*opts.split()))
    assert [record["epoch"] for record in records if "patterns" in record] == epochs


@pytest.mark.parametrize(("limit", "precision"), [("0", "off"), ("0.5", "off"), ("0.5", "fp16")])
def test_gradients_are_clipped_to_their_norm(train, monkeypatch, limit, precision):
    """Without the scale that float16 gives them."""
    norms = []

    def with_hook(cfg, model):
        optimizer = make_optimizer(cfg, model)

        def note(optimizer, *_):
            gradients = [parameter.grad for parameter in model.parameters()]
            present = [gradient for gradient in gradients if gradient is not None]
            # a scale that the fused step takes away is set by the scaler
            scale = getattr(optimizer, "grad_scale", None)
            norm = float(torch.nn.utils.get_total_norm(present)) / float(
                1 if scale is None else scale
            )
            if math.isfinite(norm):  # the scaler leaves out steps whose gradients overflow
                norms.append(norm)

        optimizer.register_step_pre_hook(note)
        return optimizer

    monkeypatch.setattr(reid, "make_optimizer", with_hook)
    opts = ("SOLVER.MAX_EPOCHS", "1", "SOLVER.EVAL_UNTRAINED", "False", "SOLVER.AMP", precision)
    train(*opts, "SOLVER.GRAD_CLIP", limit)
    # of less than a million parameters
    error = tolerance(1_000_000)
    assert max(norms) > 1 if limit == "0" else max(norms) == pytest.approx(0.5, rel=error)


@pytest.mark.parametrize(
    ("pattern", "best"), [(1, 2), (2, 3), pytest.param(3, 1, marks=pytest.mark.slow)]
)
def test_the_best_checkpoint_is_that_of_the_return_pattern(
    train, tiny_root, command, monkeypatch, pattern, best
):
    """The first of equal ones, of a run that goes on too, by rankings of this test: a real training may have any."""
    epochs = iter((1, 2, 3, 4))

    def rankings(*_):
        epoch = next(epochs)
        means = {1: epoch in (2, 4), 2: epoch in (3, 4), 3: epoch in (1, 4)}
        return {
            "nothing": {
                key: Ranking(torch.ones(50), 0.9 if is_best else 0.5, 0.5, {})
                for key, is_best in means.items()
            }
        }

    monkeypatch.setattr(reid, "evaluate_reid", rankings)
    words = [
        *["SOLVER.EVAL_PERIOD", "1", "SOLVER.EVAL_UNTRAINED", "False"],
        *["SOLVER.IMS_PER_BATCH", "24", "DATALOADER.NUM_INSTANCE", "4"],
        *f"TEST.MISS nothing TEST.RETURN_PATTERN {pattern}".split(),
    ]
    output = train("SOLVER.MAX_EPOCHS", "3", *words)
    words += ["OUTPUT_DIR", output, "SOLVER.MAX_EPOCHS", "4", "RESUME", "yes"]
    assert command(train_net.main, *cli_args_for(tiny_root, *words))[0] == 0
    assert torch.load(output / "best.pth", weights_only=True)["epoch"] == best


@pytest.mark.parametrize("value", [True, False])
def test_training_and_evaluation_compile_the_backbone(train, value):
    """Without compiling it, for time's sake: tests/modeling/test_fast_model.py does, and looks at what comes out."""
    opts = ("SOLVER.MAX_EPOCHS", "1", "SOLVER.EVAL_UNTRAINED", "False", "MODEL.COMPILE", str(value))
    with mock.patch.object(torch.nn.Module, "compile") as compiled:
        output = train(*opts)
        assert compiled.called is value
        cfg = load_cfg(output / "config.yml", ["TEST.WEIGHT", str(output / "last.pth")])
        assert load_model_and_data(cfg)[0].backbone.is_compiled is value
