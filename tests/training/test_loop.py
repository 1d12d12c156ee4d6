"""The loop (training/loop.py): losses that are not finite, clipping, what is evaluated and which epoch is the best."""

import math
from unittest import mock

import pytest
import torch
from commands import ONE_LINE, ROOT, cli_args_for, load_records
from numeric import tolerance
from seps_tiny import cli_args_for as seps_cli_args_for

from demo_sdtps.commands import train as train_net
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.evaluation.metrics import Ranking
from demo_sdtps.evaluation.protocol import load_model_and_data
from demo_sdtps.training import optim, reid
from demo_sdtps.training.loop import LAG, Loss, Meter
from demo_sdtps.training.reid import ReIDLoss
from seps import __main__ as seps
from seps.training import BatchLoss

pytestmark = pytest.mark.usefixtures("shallow")


@pytest.fixture
def train(tiny_root, tmp_path, success):
    def run(*opts):
        words = cli_args_for(tiny_root, "OUTPUT_DIR", tmp_path, "--overwrite", *opts)
        success(train_net.main, *words)
        return tmp_path

    return run


def test_a_meter_has_the_means_over_samples():
    meter = Meter(1)
    for samples, value in ((2, 1.0), (6, 3.0)):
        meter.update(Loss(torch.tensor(value), samples, {"accuracy": torch.tensor(samples / 2)}))
    assert meter.means() == {"loss": 2.5, "accuracy": 0.5}


def test_a_loss_is_read_a_few_steps_later_and_at_the_end():
    meter = Meter(2)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, math.nan, *[1.0] * (LAG - 1)):
        meter.update(Loss(torch.tensor(value), 1, {}))
    with pytest.raises(UserError, match=r"epoch 2, step 7 \(the .* before it: 2, 3, 4, 5, 6\)"):
        meter.update(Loss(torch.tensor(1.0), 1, {}))
    meter = Meter(1)
    meter.update(Loss(torch.tensor(-math.inf), 1, {}))
    with pytest.raises(UserError, match=r"-inf in epoch 1, step 1 .*before it: none"):
        meter.check_losses()


def times(value):
    return lambda loss, model: loss * value


def without_a_gradient(loss, model):
    """The same loss, whose gradient is no number."""
    return loss + (0 * next(model.parameters()).sum()).abs().sqrt()


COMMANDS = {
    "train_net": (train_net.main, (ReIDLoss, "forward"), cli_args_for, "tiny_root"),
    "seps train": (seps.train, (BatchLoss, "__call__"), seps_cli_args_for, "shapes_root"),
}
ONE_STEP = ("SOLVER.IMS_PER_BATCH", "48", "DATALOADER.NUM_INSTANCE", "8")
"""An epoch is one step, after which the weights are looked at before another loss is."""
CASES = {
    "train": ("train_net", times(math.nan), (), "The loss became nan in epoch 2, step 1 ("),
    "seps train": ("seps train", times(math.inf), (), "The loss became inf in epoch 2, step 1 ("),
    "a gradient": ("train_net", without_a_gradient, ONE_STEP, "The weights after epoch 2 are not"),
}


@pytest.mark.parametrize(("name", "change", "more", "sentence"), CASES.values(), ids=CASES)
def test_what_is_not_finite_ends_the_run_and_is_not_saved(
    request, command, tmp_path, monkeypatch, name, change, more, sentence
):
    """In the second epoch; the first was saved, and stays as it was."""
    main, method, words, root = COMMANDS[name]
    monkeypatch.chdir(ROOT)
    original, last = getattr(*method), tmp_path / "run" / "last.pth"

    def scaled_loss(self, batch):
        mean, *others = original(self, batch)
        model = getattr(self, "network", None) or self.model
        return Loss(change(mean, model) if last.exists() else mean, *others)

    words = words(request.getfixturevalue(root), "OUTPUT_DIR", tmp_path / "run", *more)
    with mock.patch.object(*method, scaled_loss):
        code, _, stderr = command(main, *words)
    assert code == 2 and stderr.strip().splitlines()[-1].startswith(f"{ONE_LINE}{sentence}")
    content = torch.load(last, weights_only=True)
    assert content["epoch"] == 1
    assert all(tensor.isfinite().all() for tensor in content["model"].values())


@pytest.mark.parametrize(
    ("opts", "epochs"),
    [
        ("SOLVER.MAX_EPOCHS 1 SOLVER.EVAL_UNTRAINED True", [0, 1]),
        ("SOLVER.MAX_EPOCHS 3 SOLVER.EVAL_PERIOD 2 SOLVER.EVAL_UNTRAINED False", [2, 3]),
    ],
)
def test_epochs_draw_other_batches_and_some_have_an_evaluation(train, opts, epochs):
    """Of a model that stays as it is, so that the losses of the same batches are the same."""
    still = ("SOLVER.BASE_LR", "1e-20", "MODEL.DROP_PATH", "0")
    records = load_records(train(*opts.split(), *still))
    assert [record["epoch"] for record in records if "patterns" in record] == epochs
    losses = [record["loss"] for record in records if record["epoch"]]
    assert len({*losses}) == len(losses)


@pytest.mark.parametrize(("limit", "precision"), [("0", "off"), ("0.5", "off"), ("0.5", "fp16")])
def test_gradients_are_clipped_to_their_norm(train, monkeypatch, limit, precision):
    """Without the scale that float16 gives them, and with it no step is recorded, which only a GPU could do."""
    norms, make_optimizer = [], optim.make_optimizer
    monkeypatch.setattr(reid, "can_record", lambda *_: precision == "fp16")

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

    monkeypatch.setattr(optim, "make_optimizer", with_hook)
    opts = ("SOLVER.MAX_EPOCHS", "1", "SOLVER.EVAL_UNTRAINED", "False", "SOLVER.AMP", precision)
    train(*opts, "SOLVER.GRAD_CLIP", limit)
    # of less than a million parameters
    error = tolerance(1_000_000)
    assert max(norms) > 1 if limit == "0" else max(norms) == pytest.approx(0.5, rel=error)


@pytest.mark.parametrize(("pattern", "best"), [(1, 2), (2, 3)])
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
                key: Ranking(torch.ones(50), 0.9 if is_best else 0.5, 0.5)
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


@pytest.mark.parametrize(("asked", "inside"), [("default", 0), ("warn", 2)])
# of operations that are not deterministic, which the mode "warn" tells
@pytest.mark.filterwarnings("ignore")
def test_the_backward_pass_is_deterministic_where_that_is_asked_for(train, asked, inside):
    """As on a GPU, where a warning would leave the fused attention as it is; the rest of the step is as before."""
    modes, forward = {"forward": set(), "backward": set()}, ReIDLoss.forward

    def watched(loss, batch):
        modes["forward"].add(torch.get_deterministic_debug_mode())
        mean, *others = forward(loss, batch)
        mean.register_hook(lambda _: modes["backward"].add(torch.get_deterministic_debug_mode()))
        return Loss(mean, *others)

    torch.set_deterministic_debug_mode(asked)
    try:
        before = torch.get_deterministic_debug_mode()
        with mock.patch.object(ReIDLoss, "forward", watched):
            train("SOLVER.MAX_EPOCHS", 1)
        assert torch.get_deterministic_debug_mode() == before
    finally:
        torch.set_deterministic_debug_mode("default")
    assert modes == {"forward": {before}, "backward": {inside}}
