"""Rows of benchmarks/run.py: slimming of ViT-B/16 at 256×128 pixels beside the dense backbone, in the same model."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from yacs.config import CfgNode

from benchmarks.model import (
    BATCH,
    FEW,
    GPU_BATCH,
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
    training_step,
    with_masks,
)
from demo_sdtps.config import with_values
from demo_sdtps.datasets.loaders import Batch
from demo_sdtps.evaluation.operations import count_macs
from demo_sdtps.modeling import DeMo, make_model
from demo_sdtps.modeling.inference import inference
from demo_sdtps.modeling.slimmed import make_slimming
from demo_sdtps.modeling.slimming.stage import Slimming
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.graphs import WARM_UPS
from demo_sdtps.training.optim import make_optimizer

ByCase = Mapping[str, float]  # numbers by the name of the setting, or DENSE
Work = Callable[[Batch], object]
DENSE = "dense"
STEP = "training step"
MANY = 512  # triplets whose inference takes a GPU longer than launching it takes a CPU
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
MEASURED_SCORES = ("saliency", "supervised", "self_supervised")
LESS = Setting("self_supervised", STAGES, (0.5, 0.5))
SLIM_SETTINGS = {
    "ViT-B-16": (LESS, *(Setting(score, STAGES, (0.4, 0.5)) for score in MEASURED_SCORES)),
    "vit_base_patch16_224": (Setting("self_supervised", STAGES, (0.4, 0.5)),),
}
PRODUCTS = re.compile("aten::(mm|addmm|bmm|baddbmm|.*convolution.*)")
"""Operators that are matrix products, attention's included (it is not fused where these are measured, on CPUs in bfloat16)."""


def slimming_rows(quick: bool, device: torch.device) -> Iterator[Row]:
    """Inference and a training step, float32 and bfloat16. A GPU has fewer settings and more images, also the memory of a step,
    and rows with MODEL.COMPILE. Every setting is run in the same model, dense or slimmed."""
    chosen = SLIM_SETTINGS
    if device.type == "cuda":
        chosen = {"ViT-B-16": (LESS, *SLIM_SETTINGS["ViT-B-16"][-1:])}
    for backbone, settings in chosen.items():
        cfg = configuration("MODEL.TRANSFORMER_TYPE", backbone)
        yield from backbone_rows(
            cfg, settings[-1:] if quick else settings, quick, precisions(device)
        )


def backbone_rows(
    cfg: CfgNode, settings: Sequence[Setting], quick: bool, halves: Sequence[torch.dtype | None]
) -> Iterator[Row]:
    """The rows of one backbone."""
    torch.manual_seed(cfg.SOLVER.SEED)
    device = choose_device(cfg)
    count = FEW if quick else GPU_BATCH if device.type == "cuda" else BATCH
    model = make_model(cfg, CLASSES, CAMERAS)
    slimmed = {setting.name: setting.of(cfg) for setting in settings}
    stages = {name: make_slimming(slim, model.backbone) for name, slim in slimmed.items()}
    operations: dict[str, float] = {DENSE: count_macs(cfg, model)[""]}
    for name, slim in slimmed.items():
        model.slimming = stages[name]
        operations[name] = count_macs(slim, model)[""]
    # So that one optimizer serves all: its states are twice the size of the model.
    model.add_module("timed", nn.ModuleList(stages.values()))
    model.to(device)
    batch = random_batch(cfg, count, device)
    optimizer = make_optimizer(cfg, model)

    def rows_of_work(
        kind: str, half: torch.dtype | None, make_work: Callable[[], Work], rounds: int
    ) -> Iterator[Row]:
        what = f"{cfg.MODEL.TRANSFORMER_TYPE}, {kind}, {precision_name(half)}"
        cases: dict[str, Callable[[], object]] = {
            DENSE: partial(with_stages, model, None, partial(make_work(), batch))
        }
        for name, slim in slimmed.items():
            inputs = with_masks(slim, batch) if model.training else batch
            cases[name] = partial(with_stages, model, stages[name], partial(make_work(), inputs))
        is_on_gpu = device.type == "cuda"
        # Recorded steps have gradients of their own, of which the optimizer sees the last case's: it is timed, nothing learns.
        for case in cases.values():
            for _ in range(WARM_UPS + 1 if is_on_gpu else 0):
                case()
        seconds = in_turns(what, cases, 1 if quick else rounds, device)
        rest = others(cases) if half and not is_on_gpu else {}
        has_memory = is_on_gpu and kind == STEP
        memory = {name: allocated_memory(cases[name], device) for name in cases if has_memory}
        yield from pairs(what, seconds, operations, rest, memory)

    def inference_rows(kind: str, half: torch.dtype | None) -> Iterator[Row]:
        with inference(model, half):
            work = lambda inputs: model(inputs.images, inputs.cameras)  # noqa: E731
            yield from rows_of_work(kind, half, lambda: work, 4)

    def step_rows(kind: str, half: torch.dtype | None, is_recorded: bool = False) -> Iterator[Row]:
        model.train()
        words = (cfg, model, optimizer, half, model.head_weights, is_recorded)
        yield from rows_of_work(kind, half, partial(training_step, *words), 2)

    for half in halves:
        yield from inference_rows("inference", half)
        yield from step_rows(STEP, half)
    if device.type == "cuda":
        model.backbone.compile_blocks()
        half = halves[-1]
        yield from inference_rows("inference with MODEL.COMPILE", half)
        yield from step_rows(f"{STEP} with MODEL.COMPILE", half, is_recorded=True)
        batch = random_batch(cfg, MANY, device)
        yield from inference_rows(f"inference of {MANY} triplets with MODEL.COMPILE", half)


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
    rest: ByCase,
    memory: ByCase,
) -> Iterator[Row]:
    """For every setting the times, dense and slimmed, and the share of time saved over that of operations saved; the times of
    the `rest` and the MiB of `memory` where they are given, and their ratio."""
    for name in [name for name in seconds if name != DENSE]:
        dense, slim, left = seconds[DENSE], seconds[name], operations[name] / operations[DENSE]
        title = f"{what}: {name} ({100 * left:.0f} % of the operations)"
        least = FAST_TARGET if left < THIRD else None
        yield ratio_row(title, dense, slim, least)
        saved = (1 - slim / dense) / (1 - left)
        target, is_met = f"≥ {SAVED_TARGET:g}", saved >= SAVED_TARGET
        yield Row("… time saved over operations saved", None, saved, "", None, target, is_met)
        if rest:
            yield ratio_row("… of it no matrix product", rest[DENSE], rest[name])
        if memory:
            yield ratio_row(MEMORY, memory[DENSE], memory[name], unit="MiB")
