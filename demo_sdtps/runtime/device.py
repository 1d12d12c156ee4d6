"""Device, precision, seed and log."""

import logging
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import torch
from tqdm.contrib.logging import logging_redirect_tqdm
from yacs.config import CfgNode

from demo_sdtps.runtime.distributed import env_world_size, local_rank
from demo_sdtps.runtime.errors import UserError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "off": None}


def choose_device(cfg: CfgNode) -> torch.device:
    """MODEL.DEVICE as a device; auto is CUDA where available."""
    name = cfg.MODEL.DEVICE
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{local_rank() if env_world_size() > 1 else int(cfg.MODEL.DEVICE_ID)}"
    device = torch.device(name)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise UserError(
            f"The GPU {name} (MODEL.DEVICE, MODEL.DEVICE_ID) is none of {torch.cuda.device_count()} here; set another or cpu."
        )
    return device


def choose_precision(mode: str, device: torch.device) -> torch.dtype | None:
    """The dtype for a value of SOLVER.AMP or TEST.AMP on a device, None for float32 (docs/method.md). auto: bfloat16 where the
    hardware supports it (AMX or AVX512-BF16 on CPUs, GPUs from Ampere on), float16 on older GPUs."""
    if mode == "auto" and device.type == "cuda":
        mode = "bf16" if torch.cuda.get_device_capability(device)[0] >= 8 else "fp16"
    elif mode == "auto":
        # The names of the probes differ between versions of torch; a missing one counts as no.
        probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        mode = "bf16" if any(getattr(torch.cpu, probe, bool)() for probe in probes) else "off"
    return DTYPES[mode]


def autocast(device: torch.device, precision: torch.dtype | None) -> AbstractContextManager:
    """Mixed precision in `precision`; None disables it."""
    return torch.autocast(device.type, dtype=precision, enabled=precision is not None)


def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch on all devices; with a GPU also ask for deterministic algorithms."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        # Otherwise cuBLAS and the backward of fused attention may sum in a different order each time.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # cuDNN's attention has no deterministic backward
        torch.backends.cuda.enable_cudnn_sdp(False)
        # A kernel for every new tensor, which nothing reads before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # set by its class


@contextmanager
def deterministic_backward() -> Iterator[None]:
    """Context manager: what `set_seed` asks for on a GPU is enforced: `RuntimeError` for an operation that cannot be
    deterministic. Where that is a warning only, torch's fused attention keeps its backward whose sums have no fixed order."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error" if before else "default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Context manager: log to the console, around progress bars, and append to the file at `path`."""
    logging.basicConfig(format="%(levelname)s %(message)s")  # unless the user's program has done it
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    file = logging.FileHandler(path, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root.addHandler(file)
    logging.raiseExceptions = False  # on a full disk the checkpoint's own error suffices
    try:
        with logging_redirect_tqdm():
            yield
    finally:
        root.removeHandler(file)
        file.close()
