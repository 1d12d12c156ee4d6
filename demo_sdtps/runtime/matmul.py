"""Float32 matrix products on a CPU: torch's default, MKL, or oneDNN, with which some processors are twice as fast. torch takes
oneDNN where a product may round to bfloat16 inside, and with AMX it does round. So it is chosen by what it does."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from timeit import timeit

import torch
from filelock import FileLock
from torch import nn

from demo_sdtps.runtime.distributed import broadcast_from_main
from demo_sdtps.runtime.errors import UserError
from demo_sdtps.runtime.files import read_json, write_json

DEFAULT, ONEDNN = "default", "onednn"
Product = Callable[[], torch.Tensor]
_before: list[str] = []  # torch's setting at the start of each context in progress
_lock = Lock()


@cache
def choose_matmul(mode: str, device: torch.device) -> str:
    """DEFAULT or ONEDNN for a value of SOLVER.FLOAT32_MATMUL on a device, as the main process chooses for all; they make the
    first call together."""
    if mode == DEFAULT or device.type != "cpu" or not hasattr(torch.backends.mkldnn, "matmul"):
        return DEFAULT  # the last: torch below 2.9
    # little for each thread: beside busy processes no long product has the cores for itself
    rows, generator = 128 * torch.get_num_threads(), torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 512, generator=generator, device="cpu") for n in (rows, 512))
    products = onednn()(lambda: a @ b.T), lambda: a @ b.T, lambda: a.double() @ b.double().T
    return broadcast_from_main(lambda: ONEDNN if takes_onednn(mode, *products) else DEFAULT)


def takes_onednn(mode: str, ours: Product, default: Product, exact: Product) -> bool:
    """Whether oneDNN's product is exact and, for auto, differs from the default's and takes at most 0.75 of its time."""
    # float32 has a relative error of 2e-7, bfloat16 of 2e-3
    is_exact = bool((ours() - exact()).norm() <= 1e-5 * exact().norm())
    if mode == ONEDNN or not is_exact or torch.equal(ours(), default()):
        return mode == ONEDNN and is_exact
    return time_ratio(ours, default) <= 0.75


def time_ratio(*products: Product) -> float:
    """The least time of the first product over that of the second, in turns. The first process on such a processor with this
    torch measures it for all, by the user's cache folder: by times of its own, a run could choose otherwise than the last."""

    def measure() -> float:
        turns = [[timeit(product, number=1) for product in products] for _ in range(100)]
        ours, default = map(min, zip(*turns, strict=True))
        return ours / default

    with suppress(OSError, RuntimeError, UserError):  # no home, rights, locks or space
        about = Path("/proc/cpuinfo").read_text()
        kind = re.findall(r"^(?:vendor_id|cpu family|model|stepping)\s*: (\S+)$", about, re.M)[:4]
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "demo_sdtps"
        path = folder / f"matmul-{'-'.join(kind)}-{torch.__version__}.json"
        with FileLock(f"{path}.lock", timeout=60, fallback_to_soft=False):
            if read_json(path) is None:
                write_json(path, measure())
            return read_json(path)
    return measure()


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


def matmul_of(model: nn.Module) -> AbstractContextManager:
    """Context manager: float32 products as the attribute `float32_matmul` of a model says, if it has one."""
    mode = choose_matmul(getattr(model, "float32_matmul", DEFAULT), next(model.parameters()).device)
    return onednn() if mode == ONEDNN else nullcontext()
