"""SOLVER.FLOAT32_MATMUL: matrix products on a CPU by oneDNN in place of torch's default, with which some processors are twice
as fast. torch takes oneDNN where a product may round to bfloat16 inside, and with AMX it does round."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock

import torch
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.runtime.errors import UserError

DEFAULT, ONEDNN = "default", "onednn"
_before: list[str] = []  # torch's setting at the start of each context in progress
_lock = Lock()


def matmul_library(cfg: CfgNode) -> str:
    """DEFAULT or ONEDNN, as SOLVER.FLOAT32_MATMUL says; `UserError` where this torch has no choice."""
    if cfg.SOLVER.FLOAT32_MATMUL != ONEDNN:
        return DEFAULT
    if not hasattr(torch.backends.mkldnn, "matmul"):
        raise UserError(
            f"SOLVER.FLOAT32_MATMUL is {ONEDNN!r}, which needs torch 2.9, not {torch.__version__}; set it to {DEFAULT!r}."
        )
    return ONEDNN


@contextmanager
def onednn() -> Iterator[None]:
    """Context manager: float32 products on the CPU are oneDNN's, in all threads, for which torch has one setting."""
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # set by its class
    with _lock:
        _before.append(setting.fp32_precision)
        setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        with _lock:  # of contexts that overlap, the last to end restores what the first found
            setting.fp32_precision = _before.pop()


def float32_products(model: nn.Module) -> AbstractContextManager:
    """Context manager: float32 products as the attribute `float32_matmul` of a model says, if it has one and is on a CPU."""
    is_onednn = getattr(model, "float32_matmul", DEFAULT) == ONEDNN
    on_cpu = next(model.parameters()).device.type == "cpu"
    return onednn() if is_onednn and on_cpu else nullcontext()
