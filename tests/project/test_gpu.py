"""What a GPU computes as a CPU does, and what only a GPU shows: pytest -o addopts='' -m gpu (docs/performance.md); the golden
cases run too (tests/conftest.py). GPU_TEST_DEVICE=cpu checks these functions where there is no GPU."""

import shlex
import shutil
from contextlib import nullcontext
from functools import partial
from unittest import mock

import pytest
import torch
from commands import (
    CONFIG,
    ROOT,
    SMALL,
    assert_same,
    at,
    call,
    kill,
    load_records,
    near,
    three_epochs,
)
from golden_cases import relative_error
from processes import TORCHRUN, run
from tiny import CAMERAS, CLASSES

from demo_sdtps.config import load_cfg
from demo_sdtps.datasets import read_splits
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.protocol import CASES, extract_features
from demo_sdtps.modeling.demo import make_model
from demo_sdtps.modeling.precision import compile_model
from demo_sdtps.runtime import gpu as graphs
from demo_sdtps.runtime.device import DTYPES
from demo_sdtps.training import loop, reid
from demo_sdtps.training.loop import Meter

pytestmark = pytest.mark.gpu

ROUNDED = {"off": 1e-4, "bf16": 2e-2}
"""Relative errors of a whole model, as the golden cases have them, and of a few roundings to bfloat16 (2⁻⁸) in its blocks."""
SLIM = shlex.split(
    "MODEL.SLIM_BLOCKS [1,3] MODEL.SLIM_KEEP [0.5,0.7] INPUT.JOINT_AUGMENTATION True"
)
EXTRACTED = {
    "SDTPS": (),
    "HDM": ("MODEL.HDM", "True", "MODEL.ATM", "True", "MODEL.HEAD", "4"),
    "slimmed": SLIM,
}
"""Models whose features are recorded."""
STILL = ("SOLVER.AMP", "off", "MODEL.DROP_PATH", "0.0")
TWO_STEPS = shlex.split(
    "SOLVER.IMS_PER_BATCH 24 DATALOADER.NUM_INSTANCE 4 SOLVER.LOG_PERIOD 1 SOLVER.GRAD_CLIP 5"
)


def random_images(cfg, device, batch=8):
    return {
        name: torch.randn(batch, 3, *cfg.INPUT.SIZE_TRAIN, device=device)
        for name in ("RGB", "NI", "TI")
    }


@pytest.mark.parametrize("mode", DTYPES)
def test_a_resumed_run_equals_another_of_the_same_seed(gpu, mode, tiny_root, tmp_path):
    """To the last bit, in every precision; a loss that is not finite would end it."""
    opts = ("MODEL.DEVICE", gpu, "SOLVER.AMP", mode, "RESUME", "auto")
    one, other = (
        three_epochs(tiny_root, *opts, "OUTPUT_DIR", tmp_path / name) for name in ("one", "other")
    )
    assert call(one) == 0
    with at(Meter, "update", 9, kill):
        assert call(other) == 130
    assert call(other) == 0
    assert_same(tmp_path / "one", tmp_path / "other")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler warns of what it does itself
def test_a_compiled_model_equals_others(gpu):
    """Whole on a GPU."""
    if gpu.type == "cpu" and not shutil.which("g++"):
        pytest.skip("there is no C++ compiler")
    cfg = load_cfg(CONFIG, [*SMALL])
    torch.manual_seed(0)
    model = make_model(cfg, CLASSES, CAMERAS).to(gpu).eval()
    images, cameras = random_images(cfg, gpu), torch.zeros(8, dtype=torch.long, device=gpu)
    actual = []
    for _ in range(2):
        model.zero_grad()
        features = model(images, cameras)
        (features * torch.linspace(-1, 1, features.shape[1], device=gpu)).sum().backward()
        actual.append((features.detach(), model.backbone.vit.patch_embed.proj.weight.grad))
        compile_model(model, gpu)
    assert all(relative_error(*pair) < ROUNDED["off"] for pair in zip(*actual, strict=True))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("mode", "is_compiled"),
    [
        *(("bf16", False), ("off", False), ("fp16", False)),
        pytest.param("bf16", True, marks=pytest.mark.slow),
    ],
)
def test_a_recorded_step_equals_others(gpu, mode, is_compiled, tiny_root, tmp_path, monkeypatch):
    """A run by CUDA graphs, which is interrupted and resumed, equals one without a graph to the last bit; so does one whose
    gradients are scaled, which is not recorded."""
    if gpu.type == "cpu":
        pytest.skip("there is no GPU that records a step")
    opts = ("MODEL.DEVICE", gpu, "SOLVER.AMP", mode, "MODEL.COMPILE", is_compiled)
    opts = (*opts, "RESUME", "auto")
    one, other = (
        three_epochs(tiny_root, *opts, "OUTPUT_DIR", tmp_path / name) for name in ("one", "other")
    )
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "WARM_UPS", 99)
        assert call(one) == 0
    replays = at(torch.cuda.CUDAGraph, "replay", 1, lambda: None)
    with nullcontext() if mode == "fp16" else replays, at(Meter, "update", 9, kill):
        assert call(other) == 130
    assert call(other) == 0
    assert_same(tmp_path / "one", tmp_path / "other")


@pytest.mark.parametrize("mode", ["bf16", "off"])
@pytest.mark.parametrize("opts", EXTRACTED.values(), ids=EXTRACTED)
def test_recorded_features_equal_others(gpu, mode, opts, tiny_root, tmp_path, monkeypatch):
    """To the last bit, the last batch too, and again with other weights."""
    opts = (*opts, "MODEL.DEVICE", gpu, "TEST.AMP", mode, "TEST.IMS_PER_BATCH", 3)
    cfg = load_cfg(CONFIG, [str(word) for word in three_epochs(tiny_root, *opts)[2:]])
    torch.manual_seed(0)
    model = make_model(cfg, CLASSES, CAMERAS).to(gpu)
    loader = test_loader(cfg, read_splits(cfg, ("gallery",))["gallery"])
    replays = []
    with monkeypatch.context() as patch:
        replay = torch.cuda.CUDAGraph.replay
        patch.setattr(
            torch.cuda.CUDAGraph, "replay", lambda graph: replays.append(graph) or replay(graph)
        )
        for scale in (1.0, 1.1):
            with torch.no_grad():
                model.backbone.vit.norm.weight.mul_(scale)
            (actual,) = extract_features(cfg, model, loader)
            with monkeypatch.context() as eager:
                eager.setattr(graphs, "WARM_UPS", len(loader))
                (expected,) = extract_features(cfg, model, loader)
            assert torch.equal(actual[3], expected[3])
    whole, rest = divmod(len(loader.dataset), 3)
    assert rest and whole > graphs.WARM_UPS + 1
    assert len(replays) == (2 * (whole - graphs.WARM_UPS) if gpu.type == "cuda" else 0)
    assert len(set(map(id, replays))) == (2 if replays else 0)


@pytest.mark.slow
def test_two_processes_train_like_one(gpu, tiny_root, tmp_path):
    opts = shlex.split("SOLVER.EVAL_UNTRAINED False SOLVER.OPTIMIZER_NAME SGD")
    words = ["--config_file", CONFIG, "DATASETS.ROOT_DIR", tiny_root, *SMALL, *STILL, *opts]
    words += ["MODEL.DEVICE", gpu.type, "OUTPUT_DIR"]
    assert call([*words, tmp_path / "one"]) == 0
    are_enough = gpu.type == "cpu" or torch.cuda.device_count() > 1
    script = ["train_net.py"] if are_enough else ["tests/helpers/processes.py", "--gloo"]
    done = run(*TORCHRUN, *script, *words, tmp_path / "two", "MODEL.DIST_TRAIN", "True")
    assert done.returncode == 0, done.stderr
    for one, two in zip(*(load_records(tmp_path / name) for name in ("one", "two")), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=ROUNDED["off"])
        assert two["patterns"] == near(one["patterns"], exchanges=3)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("name", ["DeMo_SDTPS", "DeMo_Slim"])
def test_the_cpu_does_not_wait_for_the_gpu(gpu, name, tiny_root, tmp_path):
    """Neither in an epoch with a progress bar nor in the loop of an evaluation."""
    if gpu.type == "cpu":
        pytest.skip("there is no GPU to wait for")
    opts = ("DATASETS.ROOT_DIR", tiny_root, "MODEL.DEVICE", "cuda", "OUTPUT_DIR", tmp_path)
    words = [*map(str, opts), *SMALL, *STILL, *TWO_STEPS]
    cfg = load_cfg(ROOT / "configs" / "Synthetic" / f"{name}.yml", words)
    modes, splits = ["default", "error"], read_splits(cfg)  # first without, for what is done once

    batches = loop.batches

    def watched(loader):
        torch.cuda.set_sync_debug_mode(modes.pop(0))
        try:
            yield from batches(loader)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    fit = partial(loop.fit, batches=watched)
    with mock.patch.object(reid, "fit", fit):
        model = reid.train(cfg).model
    assert not modes
    loader = test_loader(cfg, splits["query"])
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            extract_features(cfg, model, loader, [CASES["nothing"], CASES["r"]])
        finally:
            torch.cuda.set_sync_debug_mode("default")
