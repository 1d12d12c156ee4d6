"""Rows of benchmarks/run.py: slimming of ViT-B/16 at 256×128 pixels beside the dense backbone, in the same model."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from yacs.config import CfgNode

from benchmarks.model import (
    BATCH,
    FEW,
    GPU_BATCH,
    GPU_ROUNDS,
    MEMORY,
    allocated_memory,
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
    time_in_turns,
    training_step,
)
from demo_sdtps.config import with_values
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.modeling import DeMo, make_model
from demo_sdtps.modeling.demo import make_slimming
from demo_sdtps.modeling.inference import compile_model, inference
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.gpu import WARM_UPS, Recording
from demo_sdtps.training.optim import make_optimizer
from vit_slim.stage import Slimming

ByCase = Mapping[str, float]  # numbers by the name of the setting, or DENSE
Work = Callable[[], object]
DENSE = "dense"
INFERENCE, STEP = "inference", "training step"
GPU_COUNTS = (
    8,
    GPU_BATCH,
    512,
)  # triplets; in the last, launching takes a CPU less than a GPU computes
GOALS = {INFERENCE: 2.2, STEP: 2.0}  # speed-up on a GPU at 35 % of the operations
EAGER, RETURNED = ", launched one by one", "… until the call returns"
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
MEASURED_SCORES = ("saliency", "self_supervised")
LESS = Setting("self_supervised", STAGES, (0.5, 0.5))
SLIM_SETTINGS = {
    "ViT-B-16": (LESS, *(Setting(score, STAGES, (0.4, 0.5)) for score in MEASURED_SCORES)),
    "vit_base_patch16_224": (Setting("self_supervised", STAGES, (0.4, 0.5)),),
}
PRODUCTS = re.compile("aten::(mm|addmm|bmm|baddbmm|.*convolution.*)")
"""Operators that are matrix products, attention's included (it is not fused where these are measured, on CPUs in bfloat16)."""


def slimming_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Inference and a training step, float32 and bfloat16. A GPU has one setting, and 8, 64 and 512 triplets in bfloat16,
    recorded as in evaluation and training."""
    if device.type == "cuda":
        yield from Slimmed(configuration(), (LESS,), quick).gpu_rows()
        return
    for backbone, settings in SLIM_SETTINGS.items():
        cfg = configuration("MODEL.TRANSFORMER_TYPE", backbone)
        yield from Slimmed(cfg, settings[-1:] if quick else settings, quick).cpu_rows()


def compiled_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """A GPU's rows of 64 triplets in bfloat16 with MODEL.COMPILE, and what the first call takes, which compiles."""
    if device.type == "cuda":
        slimmed = Slimmed(configuration(), (LESS,), quick)
        compile_model(slimmed.model, device)
        yield from slimmed.rows_on_gpu(" with MODEL.COMPILE", torch.bfloat16, GPU_BATCH)


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

    def work(self, name: str, half: torch.dtype | None, count: int, is_recorded: bool) -> Work:
        """Inference or, in training, a step of setting `name` on `count` triplets."""
        cfg, model, stages = self.cfgs[name], self.model, self.stages[name]
        batch = random_batch(cfg, count, self.device)
        if model.training:
            words = (cfg, model, self.optimizer, half, model.head_weights, is_recorded)
            work = training_step(*words)
        else:
            forward = lambda inputs: model(inputs.images, inputs.cameras)  # noqa: E731
            work = Recording(forward) if is_recorded else forward
        return partial(with_stages, model, stages, partial(work, batch))

    def what(self, kind: str, half: torch.dtype | None) -> str:
        return f"{self.cfg.MODEL.TRANSFORMER_TYPE}, {kind}, {precision_name(half)}"

    def cpu_rows(self) -> Iterator[Row]:
        count, model = FEW if self.quick else BATCH, self.model
        for half in precisions(self.device):
            with inference(model, half):
                yield from self.rows_on_cpu(INFERENCE, half, count, 4)
            model.train()
            yield from self.rows_on_cpu(STEP, half, count, 2)

    def rows_on_cpu(
        self, kind: str, half: torch.dtype | None, count: int, rounds: int
    ) -> Iterator[Row]:
        cases = {name: self.work(name, half, count, False) for name in self.stages}
        what = self.what(kind, half)
        seconds = in_turns(what, cases, 1 if self.quick else rounds, self.device)
        rest = others(cases) if half else {}
        yield from pairs(what, seconds, self.operations, rest)

    def gpu_rows(self) -> Iterator[Row]:
        for half in precisions(self.device):
            for count in (FEW,) if self.quick else GPU_COUNTS if half else (GPU_BATCH,):
                yield from self.rows_on_gpu("", half, count)

    def rows_on_gpu(self, how: str, half: torch.dtype | None, count: int) -> Iterator[Row]:
        """Inference and, where its memory suffices, a step of `count` triplets."""
        of = f" of {count} triplets{how}"
        with inference(self.model, half):
            yield from self.recorded_rows(INFERENCE, of, half, count)
        if count <= GPU_BATCH:
            self.model.train()
            yield from self.recorded_rows(STEP, of, half, count)

    def recorded_rows(
        self, kind: str, of: str, half: torch.dtype | None, count: int
    ) -> Iterator[Row]:
        """Dense and slimmed, recorded and launched one by one, in turns; seconds, and MiB beside what is there before."""
        what, cases, memory, first = self.what(kind + of, half), {}, {}, {}
        for is_recorded in (False, True):  # the first step makes the states of the optimizer
            for name in self.stages:
                title = name if is_recorded else name + EAGER
                cases[title] = work = self.work(name, half, count, is_recorded)
                before, started = kept_memory(self.device), time.perf_counter()
                for _ in range(WARM_UPS + 1):
                    work()
                    torch.cuda.synchronize(self.device)
                    first.setdefault(title, time.perf_counter() - started)
                memory[title] = kept_memory(self.device) - before
                if not is_recorded:
                    memory[title] = allocated_memory(work, self.device)
        times = time_in_turns(what, cases, GPU_ROUNDS, self.device)
        seconds = {name: each.done for name, each in times.items() if name in self.stages}
        returned = {name: each.returned for name, each in times.items()}
        goals = {
            name: GOALS[kind] if count >= GPU_BATCH and name == LESS.name else None
            for name in self.stages
        }
        at_least = SAVED_TARGET if count == max(GPU_COUNTS) else None
        yield from pairs(what, seconds, self.operations, {}, memory, returned, goals, at_least)
        for name in self.stages:
            title = f"{what}: {name}, recorded beside launched one by one"
            yield ratio_row(title, times[name + EAGER].done, seconds[name])
            yield ratio_row(RETURNED, returned[name + EAGER], returned[name])
            yield ratio_row(MEMORY, memory[name + EAGER], memory[name], unit="MiB")
            if "COMPILE" in of:
                yield Row("… the first call, which compiles", None, first[name + EAGER], "s", None)


def kept_memory(device: torch.device) -> float:
    """MiB of a GPU that cannot be freed: tensors, and all that a CUDA graph may write."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device) / 2**20


def with_stages(model: DeMo, stages: Slimming | None, work: Callable[[], object]) -> None:
    model.slimming = stages
    work()


def others(cases: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each case in operators that are no matrix product, by torch's profiler."""
    seconds = {}
    for name, work in cases.items():
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            work()
        rest = [event for event in profiler.key_averages() if not PRODUCTS.fullmatch(event.key)]
        seconds[name] = sum(event.self_cpu_time_total for event in rest) / 1e6
    return seconds


def pairs(
    what: str,
    seconds: ByCase,
    operations: ByCase,
    rest: ByCase = MappingProxyType({}),
    memory: ByCase = MappingProxyType({}),
    returned: ByCase = MappingProxyType({}),
    goals: Mapping[str, float | None] | None = None,
    at_least: float | None = SAVED_TARGET,
) -> Iterator[Row]:
    """For every setting the times, dense and slimmed, and the share of time saved over that of operations saved; the times of
    the `rest`, those until a call has `returned`, and the MiB of `memory` where they are given, and their ratio. `goals` are
    the speed-ups aimed at, `at_least` is the share."""
    for name in [name for name in seconds if name != DENSE]:
        dense, slim, left = seconds[DENSE], seconds[name], operations[name] / operations[DENSE]
        title = f"{what}: {name} ({100 * left:.0f} % of the operations)"
        least = goals[name] if goals else FAST_TARGET if left < THIRD else None
        yield ratio_row(title, dense, slim, least)
        saved = (1 - slim / dense) / (1 - left)
        target, is_met = (f"≥ {at_least:g}", saved >= at_least) if at_least else ("", None)
        yield Row("… time saved over operations saved", None, saved, "", None, target, is_met)
        more = ("… of it no matrix product", rest, "s"), (RETURNED, returned, "s")
        for title, values, unit in (*more, (MEMORY, memory, "MiB")):
            if values:
                yield ratio_row(title, values[DENSE], values[name], unit=unit)
