"""Rows of benchmarks/run.py: slimming of ViT-B/16 at 256×128 pixels beside the dense backbone, in the same model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from yacs.config import CfgNode

from benchmarks.model import (
    BATCH,
    FEW,
    GPU_BATCH,
    GPU_ROUNDS,
    configuration,
    precision_name,
    precisions,
)
from benchmarks.rows import Row, ratio_row
from benchmarks.timing import (
    CAMERAS,
    CLASSES,
    in_turns,
    random_batch,
    training_step,
)
from demo_sdtps.config import with_values
from demo_sdtps.datasets.loaders import Batch
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.modeling.demo import make_model, make_slimming
from demo_sdtps.modeling.precision import inference
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.gpu import Recording
from demo_sdtps.training.optim import make_optimizer
from vit_slim.wrap import Slimming

ByCase = Mapping[str, float]  # numbers by the name of the setting, or DENSE
DENSE = "dense"
INFERENCE, STEP = "inference", "training step"
EAGER = ", launched one by one"
GPU_COUNTS = (
    8,
    GPU_BATCH,
    512,
)  # triplets; in the last, launching takes a CPU less than a GPU computes
# time saved over operations saved, and the speed-up of the settings below THIRD
SAVED_TARGET, FAST_TARGET = (0.9, 3)
THIRD = 0.33  # share of the operations


class Setting(NamedTuple):
    """Slimming to time."""

    score: str
    blocks: tuple[int, ...]
    keep: tuple[float, ...]

    @property
    def name(self) -> str:
        stages = zip(self.keep, self.blocks, strict=True)
        return ", ".join([self.score, *(f"{keep:g} after block {block}" for keep, block in stages)])

    def of(self, cfg: CfgNode) -> CfgNode:
        """The configuration with this setting."""
        slimming = {
            "MODEL.SLIM_BLOCKS": list(self.blocks),
            "MODEL.SLIM_KEEP": list(self.keep),
            "MODEL.SLIM_SCORE": self.score,
        }
        return with_values(cfg, slimming | {"INPUT.JOINT_AUGMENTATION": True})


STAGES = (0, 4)
LESS, LEAST = (Setting("saliency", STAGES, keep) for keep in ((0.5, 0.5), (0.4, 0.5)))
SLIM_SETTINGS = {"ViT-B-16": (LESS, LEAST), "vit_base_patch16_224": (LEAST,)}


def slimming_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Inference and a training step, float32 and bfloat16. A GPU has one setting, and 8, 64 and 512 triplets, recorded as in
    evaluation and training."""
    if device.type == "cuda":
        yield from Slimmed(configuration(), (LESS,), quick).rows(GPU_COUNTS)
        return
    for backbone, settings in SLIM_SETTINGS.items():
        cfg = configuration("MODEL.TRANSFORMER_TYPE", backbone)
        yield from Slimmed(cfg, settings[-1:] if quick else settings, quick).rows((BATCH,))


class Slimmed:
    """A model that is dense, or slimmed as one of the `settings` says, in turns."""

    def __init__(self, cfg: CfgNode, settings: Sequence[Setting], quick: bool):
        torch.manual_seed(cfg.SOLVER.SEED)
        self.cfg, self.quick, self.device = cfg, quick, choose_device(cfg)
        self.model = model = make_model(cfg, CLASSES, CAMERAS)
        self.cfgs = {DENSE: cfg} | {setting.name: setting.of(cfg) for setting in settings}
        self.stages: dict[str, Slimming | None] = {DENSE: None}
        self.operations: dict[str, float] = {DENSE: count_macs(cfg, model)[""]}
        for setting in settings:
            slim = self.cfgs[setting.name]
            self.stages[setting.name] = model.slimming = make_slimming(slim, model.backbone)
            self.operations[setting.name] = count_macs(slim, model)[""]
        # So that one optimizer serves all: its states are twice the size of the model.
        model.add_module("timed", nn.ModuleList(filter(None, self.stages.values())))
        model.to(self.device)
        self.optimizer = make_optimizer(cfg, model)

    def rows(self, counts: Sequence[int]) -> Iterator[Row]:
        """Inference of numbers of triplets and, where a GPU's memory suffices, a training step."""
        for half in precisions(self.device):
            for count in (FEW,) if self.quick else counts:
                with inference(self.model, half):
                    yield from self.compare(INFERENCE, half, count)
                if count <= GPU_BATCH:
                    self.model.train()
                    yield from self.compare(STEP, half, count)

    def compare(self, kind: str, half: torch.dtype | None, count: int) -> Iterator[Row]:
        """Dense and slimmed in turns; on a GPU recorded, and launched one by one, whose first step makes the states of the
        optimizer."""
        batch, is_gpu = random_batch(self.cfg, count, self.device), self.device.type == "cuda"
        cases = {}
        for is_recorded in (False, True) if is_gpu else (False,):
            for name in self.stages:
                work = partial(self.run(name, half, is_recorded), batch)
                cases[name + EAGER * (is_gpu and not is_recorded)] = work
        what = (
            f"{self.cfg.MODEL.TRANSFORMER_TYPE}, {kind}, {precision_name(half)}, {count} triplets"
        )
        rounds = 1 if self.quick else GPU_ROUNDS if is_gpu else 3
        seconds = in_turns(what, cases, rounds, self.device)
        yield from pairs(what, {name: seconds[name] for name in self.stages}, self.operations)
        for name in self.stages if is_gpu else ():
            title = f"{what}: {name}, recorded beside launched one by one"
            yield ratio_row(title, seconds[name + EAGER], seconds[name])

    def run(
        self, name: str, half: torch.dtype | None, is_recorded: bool
    ) -> Callable[[Batch], object]:
        """A function of a batch: inference or, in training, a step of setting `name`."""
        cfg, model = self.cfgs[name], self.model
        if model.training:
            words = (cfg, model, self.optimizer, half, model.head_weights, is_recorded)
            work = training_step(*words)
        else:
            forward = lambda inputs: model(inputs.images, inputs.cameras)  # noqa: E731
            work = Recording(forward) if is_recorded else forward

        def with_stages(batch: Batch) -> None:
            model.slimming = self.stages[name]
            work(batch)

        return with_stages


def pairs(what: str, seconds: ByCase, operations: ByCase) -> Iterator[Row]:
    """For every setting the times, dense and slimmed, and the share of time saved over that of operations saved."""
    for name in [name for name in seconds if name != DENSE]:
        dense, slim, left = seconds[DENSE], seconds[name], operations[name] / operations[DENSE]
        title = f"{what}: {name} ({100 * left:.0f} % of the operations)"
        yield ratio_row(title, dense, slim, FAST_TARGET if left < THIRD else None)
        saved = (1 - slim / dense) / (1 - left)
        met = saved >= SAVED_TARGET
        title = "… time saved over operations saved"
        yield Row(title, None, saved, "", None, f"≥ {SAVED_TARGET:g}", met)
