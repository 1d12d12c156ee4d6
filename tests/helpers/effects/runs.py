"""Keys of whole runs: train_net.py on the tiny data set, with one epoch where nothing else is said."""

import logging
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
from commands import records_of
from numeric import tolerance
from pytest import approx
from tqdm import tqdm

from demo_sdtps.commands import train as train_net
from demo_sdtps.config import with_values
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.metrics import Ranking
from demo_sdtps.modeling.losses import total_loss
from demo_sdtps.runtime.device import autocast, choose_device, choose_precision
from demo_sdtps.runtime.distributed import check_launch
from demo_sdtps.training import reid, trainer
from demo_sdtps.training.optim import make_optimizer
from demo_sdtps.training.output import check_tracking
from demo_sdtps.training.trainer import Trainer
from effects.base import LABELS, effect, images_of, is_reported, model_of


def run(cfg) -> Path:
    """Train as the command does: → the folder of the run."""
    file = Path(cfg.DATASETS.ROOT_DIR).parent / "run.yml"
    file.write_text(cfg.dump(), encoding="utf-8")
    with mock.patch("sys.argv", ["train_net.py", "--overwrite", "--config_file", str(file)]):
        train_net.main()
    return Path(cfg.OUTPUT_DIR)


@effect("OUTPUT_DIR", {"{root}/outputs/one": ["one"], "{root}/outputs/new/two": ["new/two"]})
def folders_that_hold_a_run(cfg):
    outputs = Path(cfg.DATASETS.ROOT_DIR).parent / "outputs"
    shutil.rmtree(outputs, ignore_errors=True)
    run(cfg)
    return [str(path.parent.relative_to(outputs)) for path in outputs.rglob("metrics.json")]


class Watch(logging.Handler):
    """Notes which epoch last.pth holds whenever the training of an epoch is logged, before its own files are written."""

    def __init__(self, output):
        super().__init__()
        self.last, self.seen = output / "last.pth", []

    def note(self):
        self.seen.append(
            torch.load(self.last, weights_only=True)["epoch"] if self.last.exists() else None
        )

    def emit(self, record):
        if ": loss" in record.getMessage():
            self.note()


class Run(NamedTuple):
    """What is seen of a training."""

    records: list
    last: list
    """The epoch of last.pth during each epoch and at the end."""
    saves: int
    norms: list
    """Of the gradient, step by step."""
    updates: int
    """Of the progress bars."""


SEEN: dict[str, Run] = {}


def seen(cfg) -> Run:
    """What a training with this configuration shows; keys that look at the same training share it."""
    text = cfg.dump()
    if text not in SEEN:
        SEEN[text] = watched(cfg)
    return SEEN[text]


def watched(cfg) -> Run:
    told, norms, output = [], [], Path(cfg.OUTPUT_DIR)
    shutil.rmtree(output, ignore_errors=True)

    class Bar(tqdm):
        def set_postfix_str(self, text="", refresh=True):
            told.append(text)

    def spied(cfg, model):
        optimizer = make_optimizer(cfg, model)
        parameters = list(model.parameters())
        optimizer.register_step_pre_hook(
            lambda *_: norms.append(
                float(
                    torch.nn.utils.get_total_norm(
                        [parameter.grad for parameter in parameters if parameter.grad is not None]
                    )
                )
            )
        )
        return optimizer

    watch, logger = Watch(output), logging.getLogger("demo_sdtps.training.trainer")
    logger.addHandler(watch)
    try:
        with (
            mock.patch.object(Trainer, "_save", autospec=True, side_effect=Trainer._save) as save,
            mock.patch.object(reid, "make_optimizer", spied),
            mock.patch.object(trainer, "progress", Bar),
        ):
            run(cfg)
    finally:
        logger.removeHandler(watch)
    watch.note()
    return Run(records_of(output), watch.seen, save.call_count, norms, len(told))


@effect("SOLVER.MAX_EPOCHS", {"1": [1], "3": [1, 2, 3]})
@effect("SOLVER.EVAL_PERIOD", {"1": [1, 2, 3], "2": [2, 3]}, "SOLVER.MAX_EPOCHS", "3")
@effect("SOLVER.EVAL_UNTRAINED", {"False": [1], "True": [0, 1]})
def epochs_with_an_evaluation(cfg):
    return [record["epoch"] for record in seen(cfg).records if "patterns" in record]


@effect(
    "SOLVER.CHECKPOINT_PERIOD",
    {"1": [None, 1, 2, 3], "2": [None, None, 2, 3]},
    *shlex.split("SOLVER.MAX_EPOCHS 3 SOLVER.EVAL_PERIOD 2"),
)
def epoch_of_the_last_checkpoint_during_each_epoch_and_at_the_end(cfg):
    return seen(cfg).last


FIVE_BATCHES = ("DATALOADER.SAMPLER", "softmax", "SOLVER.IMS_PER_BATCH", "6")


@effect("SOLVER.CHECKPOINT_MINUTES", {"0": 1, "10": 1, "1e-9": 6}, *FIVE_BATCHES)
def saves_in_an_epoch_of_five_batches(cfg):
    return seen(cfg).saves


@effect("SOLVER.LOG_PERIOD", {"1": 3, "2": 1, "10": 0}, *FIVE_BATCHES)
def updates_of_the_bar_in_five_batches(cfg):
    return seen(cfg).updates


@effect("SOLVER.WANDB", {"": "goes on", "one": "told"})
def training_where_wandb_is_not_installed(cfg):
    """tests/training/test_tracking.py trains where it is."""
    with mock.patch.dict(sys.modules, {"wandb": None}):
        return "told" if is_reported(check_tracking, cfg) else "goes on"


@effect("SOLVER.GRAD_CLIP", {"0": "above 1", "0.5": approx(0.5, rel=tolerance(1_000_000))})
def largest_norm_of_the_gradient(cfg):
    """Of less than a million parameters."""
    largest = max(seen(cfg).norms)
    return "above 1" if largest > 1 else largest


@effect("SOLVER.SEED", {"1111": True, "2": False})
def the_numbers_are_those_of_the_default_seed(cfg):
    """tests/training/test_reproducible.py trains twice with a seed; here one run stands for both."""
    return seen(cfg).records == seen(with_values(cfg, {"SOLVER.SEED": 1111})).records


def command_ends(cfg, *flags) -> bool:
    """Whether the training command ends well."""
    file = Path(cfg.DATASETS.ROOT_DIR).parent / "run.yml"
    file.write_text(cfg.dump(), encoding="utf-8")
    with mock.patch("sys.argv", ["train_net.py", "--config_file", str(file), *flags]):
        return not is_reported(train_net.main)


@effect("RESUME", {"no": (True, False), "yes": (False, True), "auto": (True, True)})
def a_run_begins_and_is_gone_on_with(cfg):
    shutil.rmtree(cfg.OUTPUT_DIR, ignore_errors=True)
    begins = command_ends(cfg)
    assert begins == Path(cfg.OUTPUT_DIR).exists()
    if not begins:
        assert command_ends(with_values(cfg, {"RESUME": "no"}))
    return begins, command_ends(cfg)


@effect("DATASETS.VERIFY", {"True": (True, False), "False": (True, True)}, "DATASETS.CACHE", "no")
def a_damaged_image_is_reported_and_there_is_a_run(cfg):
    """Before anything is written, or when it is met."""
    own = Path(cfg.DATASETS.ROOT_DIR).parent / "own"
    shutil.copytree(cfg.DATASETS.ROOT_DIR, own)
    for path in (own / "RGBNT201" / "test" / "TI").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    shutil.rmtree(cfg.OUTPUT_DIR, ignore_errors=True)
    told = is_reported(run, with_values(cfg, {"DATASETS.ROOT_DIR": str(own)}))
    shutil.rmtree(own)
    return told, Path(cfg.OUTPUT_DIR).exists()


BEST_EPOCHS = {1: 2, 2: 3, 3: 1}
"""In the runs below, by return pattern."""


@effect(
    "TEST.RETURN_PATTERN",
    {str(pattern): epoch for pattern, epoch in BEST_EPOCHS.items()},
    "SOLVER.MAX_EPOCHS",
    "3",
)
def epoch_of_the_best_checkpoint(cfg):
    """By rankings that are given: which epoch is best by which features cannot be had from a real training at will."""
    epochs = iter((1, 2, 3))

    def rankings(*_):
        epoch = next(epochs)
        return {
            cfg.TEST.MISS: {
                pattern: Ranking(torch.ones(50), 0.9 if epoch == best else 0.5)
                for pattern, best in BEST_EPOCHS.items()
            }
        }

    with mock.patch.object(reid, "evaluate_reid", rankings):
        output = run(cfg)
    return torch.load(output / "best.pth", weights_only=True)["epoch"]


@effect("SOLVER.AMP", {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16})
def type_of_the_logits_in_training(cfg):
    device = choose_device(cfg)
    model = model_of(cfg).train()
    with autocast(device, choose_precision(cfg.SOLVER.AMP, device)):
        output = model(*images_of(cfg))
        total_loss(cfg, output, LABELS, model.head_weights)[0].backward()
    assert all(
        parameter.grad.isfinite().all()
        for parameter in model.parameters()
        if parameter.grad is not None
    )
    return next(iter(output.logits.values())).dtype


@effect(
    "MODEL.COMPILE",
    {"True": (True, True), "False": (False, False)},
    "TEST.WEIGHT",
    "{root}/weights.pth",
)
def training_and_evaluation_compile_the_backbone(cfg):
    """Without compiling it, for time's sake: tests/modeling/test_fast_model.py does, and looks at what comes out."""
    with mock.patch.object(torch.nn.Module, "compile") as compiled:
        run(cfg)
        return compiled.called, load_model_and_data(cfg)[0].backbone.is_compiled


@effect("MODEL.DEVICE", {"cpu": "cpu", "cuda:99": "told"})
def device_on_this_machine(cfg):
    return "told" if is_reported(choose_device, cfg) else str(choose_device(cfg))


@effect("MODEL.DEVICE_ID", {"0": "cuda:0", "2": "cuda:2", "4": "told"}, "MODEL.DEVICE", "auto")
def device_on_a_machine_with_four_gpus(cfg):
    with (
        mock.patch("torch.cuda.is_available", lambda: True),
        mock.patch("torch.cuda.device_count", lambda: 4),
    ):
        found = device_on_this_machine(cfg)
        assert found == device_on_this_machine(with_values(cfg, {"MODEL.DEVICE": "cuda"}))
    return found


@effect("MODEL.DIST_TRAIN", {"True": "told", "False": "goes on"})
def training_in_a_single_process(cfg):
    return "told" if is_reported(check_launch, cfg) else "goes on"
