"""Rows of tools/gpu_check.py: DeMo's plain formulation beside ours in the same precision, on a GPU if there is one."""
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from demo_sdtps.benchmarks.data import FITTING, OTHER, draw, loading_seconds
from demo_sdtps.benchmarks.model import FEW, PRECISIONS, Sides, Work, configuration, name_of
from demo_sdtps.benchmarks.rows import Row, check_equal, in_turns, speed_row
from demo_sdtps.config.threads import cpu_cores
from demo_sdtps.datasets import images
from demo_sdtps.engine.runtime import autocast, inference

BATCH = 64
MANY_PER_SECOND = 2000
"""Triplets that the loading processes of a machine must decode and augment in a second, so that training does not wait."""
MIB = 2**20


def same_precision_rows(quick: bool) -> Iterator[Row]:
    """Inference and training step of both, in float32 and under the same autocast in bfloat16; on a GPU their memory too."""
    for precision in PRECISIONS:
        half, name = None if precision is torch.float32 else precision, name_of(precision)
        sides = Sides(configuration(), FEW if quick else BATCH)
        plain, ours = partial(_plain_features, sides, half), partial(sides.infer, sides.ours)
        if half is None:
            check_equal("inference", ours(), plain())
        rounds = 1 if quick else 5
        with inference(sides.ours, half):
            seconds = in_turns(f"inference, {name}", {"reference": plain, "ours": ours}, rounds, sides.device)
        yield speed_row(f"inference, both in {name}, {len(sides.labels)} triplets", seconds)
        steps: Work = {"reference": sides.step(sides.plain, half), "ours": sides.step(sides.ours, half)}
        seconds = in_turns(f"training, {name}", steps, rounds, sides.device)
        yield speed_row(f"training step, both in {name}, {len(sides.labels)} triplets", seconds)
        if sides.device.type == "cuda":
            reference, own = (_peak(step, sides.device) / MIB for step in steps.values())
            yield Row("… memory beside models and optimisers", reference, own, "MiB", reference / own)


def graph_rows(quick: bool) -> Iterator[Row]:
    """Inference in bfloat16 by ours alone, on a GPU: as a CUDA graph, and compiled (MODEL.COMPILE), beside one kernel after the
    other."""
    for batch in (1,) if quick else (1, BATCH):
        sides = Sides(configuration(), batch)
        plain = partial(sides.infer, sides.ours)
        with inference(sides.ours, torch.bfloat16):
            works: Work = {"reference": plain, "ours": captured(plain)}
            yield speed_row(f"CUDA graph beside kernels one by one, bfloat16, {batch} triplets",
                            in_turns("CUDA graph", works, 10, sides.device))
            eager = in_turns("eager", {"reference": plain}, 5, sides.device)
            sides.ours.backbone.compile_blocks()
            compiled = in_turns("compiled", {"ours": plain}, 5, sides.device)
        yield speed_row(f"MODEL.COMPILE beside kernels one by one, bfloat16, {batch} triplets", eager | compiled)


def captured(work: Callable[[], object]) -> Callable[[], None]:
    """A function that repeats the kernels of `work` as one CUDA graph, with the same inputs."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # torch asks for some runs on another stream first
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def decoding_rows(quick: bool) -> list[Row]:
    """Triplets that one core decodes and augments in a second of its time, which other processes do not shorten, and how many
    loading processes with a core each make MANY_PER_SECOND."""
    rows = []
    for size in (FITTING, OTHER):
        with tempfile.TemporaryDirectory() as folder:
            draw(Path(folder), *size, identities=2 if quick else 4)
            seconds = loading_seconds(Path(folder), 1 if quick else 15, time.process_time)
        what = f"decoding and augmentation of a triplet of {size[0]}×{size[1]} pixels" + (
            "" if images.simplejpeg else ", without simplejpeg")
        needed = {name: MANY_PER_SECOND * taken for name, taken in seconds.items()}
        rows += [speed_row(f"{what}, processor time", seconds),
                 Row(f"… cores for {MANY_PER_SECOND:,} in a second, of {cpu_cores()} here", needed["reference"], needed["ours"],
                     "", needed["reference"] / needed["ours"])]
    return rows


def _plain_features(sides: Sides, precision: torch.dtype | None) -> torch.Tensor:
    with autocast(sides.device, precision):
        return sides.infer(sides.plain)


def _peak(step: Callable[[], object], device: torch.device) -> int:
    """Bytes that `step` allocates on a GPU at most, beside what is there before."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    return torch.cuda.max_memory_allocated(device) - before
