"""Limits of the processor for what the benchmarks measure (rooflines, docs/performance.md): operations at the speed of a large
matrix product, data at the bandwidth of a copy."""
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from yacs.config import CfgNode

from demo_sdtps.benchmarks import data, seps
from demo_sdtps.benchmarks.modules import Fast, evaluate, random_tokens, train
from demo_sdtps.benchmarks.plain.fusion import Fusion
from demo_sdtps.benchmarks.ranking import clustered
from demo_sdtps.benchmarks.rows import Row
from demo_sdtps.config import load_cfg
from demo_sdtps.datasets.images import decode
from demo_sdtps.engine.evaluation.metrics import evaluate_distances, squared_distances
from demo_sdtps.engine.evaluation.reranking import k_reciprocal
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.seps import CrossSparseAggrNet

Work = Callable[[], object]

aten = torch.ops.aten
FORMULAS = {**flop_registry,  # it lacks torch's fused attention on CPUs, whose products are those on GPUs
            aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
            aten._scaled_dot_product_flash_attention_for_cpu_backward:
                flop_registry[aten._scaled_dot_product_flash_attention_backward]}
"""Floating-point operations by operation of torch's."""


class Operation(NamedTuple):
    """An operation of torch's: floating-point operations of its matrix products, bytes of its inputs and outputs, seconds."""

    flops: int
    size: int
    seconds: float


class Operations(TorchDispatchMode):
    """`found`: every operation inside but views, which move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operation] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        started = time.perf_counter()
        found = func(*args, **(kwargs or {}))
        seconds = time.perf_counter() - started
        given, made = ([leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
                       for tree in ((args, kwargs), found))
        places = {tensor.untyped_storage().data_ptr() for tensor in given}
        is_view = not func._schema.is_mutable and any(tensor.untyped_storage().data_ptr() in places for tensor in made)
        if not is_view:
            formula = FORMULAS.get(func._overloadpacket)
            self.found.append(Operation(formula(*args, **(kwargs or {}), out_val=found) if formula else 0,
                                        sum(tensor.nbytes for tensor in (*given, *made)), seconds))
        return found


def limit_rows(quick: bool = False) -> list[Row]:
    """Speeds of the processor, and the limits that follow from them, beside the seconds of this code; a ratio of 1 is best."""
    size, copied, rounds = (64, 1 << 16, 1) if quick else (2048, 1 << 28, 20)
    products, half, bandwidth = (product_speed(size, rounds), product_speed(size, rounds, torch.bfloat16),
                                 copy_speed(copied, rounds))
    what = f"matrix product of {size:,} × {size:,}"
    rows = [Row(f"{what}, float32", None, products / 1e9, "GFLOP/s", None),
            Row(f"{what}, bfloat16", None, half / 1e9, "GFLOP/s", None),
            Row("copy in memory, read and written", None, bandwidth / 1e9, "GB/s", None)]
    for what, work in (*fusion_works(load_cfg("RGBNT201/DeMo.yml"), quick), *seps_works(quick), reranking_work(quick)):
        rows += roofline(what, work, products, bandwidth, rounds)
    if half > products or quick:  # elsewhere training is in float32
        for what, work in attention_works(quick):
            rows += roofline(what, work, half, bandwidth, rounds)[:-1]  # the fused kernel is its products
    return [*rows, ranking_row(quick, bandwidth, rounds), decoding_row(quick, rounds)]


def roofline(what: str, work: Work, products: float, bandwidth: float, rounds: int) -> list[Row]:
    """The seconds of `work` beside those of its operations at full speed, `products` per second and bytes by `bandwidth`, and
    beside those that its matrix products take as they are."""
    runs, seconds = [], math.inf
    for _ in range(rounds):  # in turns, since the speed of a shared machine changes
        seconds = min(seconds, fastest(work, 1))
        runs.append(counted(work))
    limits = {"matrix products at full speed": sum(one.flops for one in runs[0]) / products,
              "inputs and outputs of its operations at the speed of a copy": sum(one.size for one in runs[0]) / bandwidth,
              "the longer of both, operation by operation": sum(max(one.flops / products, one.size / bandwidth)
                                                                for one in runs[0]),
              "its matrix products alone, as torch runs them": min(sum(one.seconds for one in run if one.flops)
                                                                   for run in runs)}
    return [Row(f"{what}: {told}", limit, seconds, "s", limit / seconds) for told, limit in limits.items() if limit]


def fastest(work: Work, rounds: int) -> float:
    """The least seconds of `work`, after a warm-up."""
    work()
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def counted(work: Work) -> list[Operation]:
    """The operations of `work`."""
    with Operations() as operations:
        work()
    return operations.found


def product_speed(size: int, rounds: int, dtype: torch.dtype = torch.float32) -> float:
    """Operations per second of a product of two square matrices."""
    one, other = torch.randn(2, size, size).to(dtype)
    return 2 * size**3 / fastest(partial(torch.mm, one, other), rounds)


def copy_speed(count: int, rounds: int) -> float:
    """Bytes per second, read and written, of a copy of `count` bytes by all threads."""
    source, target = torch.zeros(2, count, dtype=torch.uint8)
    return 2 * count / fastest(partial(target.copy_, source), rounds)


def fusion_works(cfg: CfgNode, quick: bool) -> list[tuple[str, Work]]:
    """HDM with ATMoE in evaluation and training."""
    batch, backbone = 2 if quick else 64, make_backbone(cfg, camera_num=1)  # only for its shapes
    module = Fast(Fusion(backbone.width, cfg.MODEL.HEAD), backbone.width, cfg.MODEL.HEAD)
    tokens = random_tokens(batch, backbone.num_patches, backbone.width, torch.device("cpu"))
    title = f"HDM + ATMoE, {batch} triplets"
    return [(f"{title}, {what}", partial(work, module, tokens))
            for what, work in (("evaluation", evaluate), ("training step", train))]


def attention_works(quick: bool) -> list[tuple[str, Work]]:
    """Attention of the demo's backbone in a bfloat16 training step, by products and by torch's fused kernel."""
    backbone = make_backbone(load_cfg("Synthetic/DeMo_SDTPS.yml"), camera_num=1)
    first: Any = backbone.vit.blocks[0]
    heads = first.attn.num_heads
    shape = (3, 2 if quick else 96, heads, 1 + backbone.num_patches, backbone.width // heads)
    query, key, value = torch.randn(shape, dtype=torch.bfloat16).requires_grad_()
    gradient = torch.randn_like(query)

    def by_products() -> torch.Tensor:
        return (query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)).softmax(-1) @ value

    def step(attend: Callable[[], torch.Tensor]) -> None:
        torch.autograd.grad(attend(), (query, key, value), gradient)

    fused = partial(F.scaled_dot_product_attention, query, key, value)
    ways: dict[str, Callable[[], torch.Tensor]] = {"plain": by_products, "fused": fused}
    return [(f"{name} attention, {' × '.join(map(str, shape[1:]))}, bfloat16 training step", partial(step, attend))
            for name, attend in ways.items()]


def seps_works(quick: bool) -> list[tuple[str, Work]]:
    """The open version of SEPS in evaluation."""
    count, patches, width = (4, 16, 32) if quick else (64, 196, 512)
    network, batch = CrossSparseAggrNet(width, patches, use_paper_version=False), seps.draw(count, count, patches, width)
    return [(f"SEPS, open version, {count} × {count}, evaluation", partial(seps.evaluate, network, batch))]


def reranking_work(quick: bool) -> tuple[str, Work]:
    """k-reciprocal re-ranking of other images on both sides."""
    queries, gallery, width = (30, 60, 16) if quick else (836, 836, 1536)
    return f"re-ranking, {queries} + {gallery}", partial(k_reciprocal, *clustered(queries, gallery, width)[:2])


def ranking_row(quick: bool, bandwidth: float, rounds: int) -> Row:
    """mAP and CMC of given distances, each of which must be read."""
    queries, gallery, width = (40, 300, 16) if quick else (3368, 15_913, 128)
    query, other, *labels = clustered(queries, gallery, width)
    distance = squared_distances(query, other)
    seconds, limit = fastest(lambda: evaluate_distances(distance, *labels), rounds), distance.nbytes / bandwidth
    return Row(f"mAP and CMC of distances, {queries:,} × {gallery:,}: the distances read once at the speed of a copy", limit,
               seconds, "s", limit / seconds)


def decoding_row(quick: bool, rounds: int) -> Row:
    """Loading and augmentation of a triplet beside the decoding of its files alone, in one thread."""
    with tempfile.TemporaryDirectory() as folder:
        data.draw(Path(folder), *data.FITTING, identities=2 if quick else 4)
        _, samples = data.training_samples(Path(folder))
        files = [path for sample in samples for path in sample.paths]
        seconds = fastest(lambda: [decode(path) for path in files], rounds) / len(samples)
        whole = data.loading_seconds(Path(folder), rounds)["ours"]
    return Row("decoding and augmentation of a triplet: its decoding alone", seconds, whole, "s", seconds / whole)
