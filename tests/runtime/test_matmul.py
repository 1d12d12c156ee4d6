"""The library of float32 products: chosen by what it does, within our own models alone, and kept by a run that is resumed."""

import json
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import pytest
import torch
from commands import BASELINE, SMALL, cli_args_for, records_of
from interrupted import at, terminate
from numeric import assert_close
from torch.nn.modules import module

import demo_sdtps
from demo_sdtps.commands import train as train_net
from demo_sdtps.runtime import matmul
from demo_sdtps.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("shallow")

OPPOSITE = {"onednn": "default", "default": "onednn"}
SETTING = {"onednn": "bf16", "default": "none"}
A, B = torch.rand(2, 64, 64, generator=torch.Generator().manual_seed(0))
default = partial(torch.matmul, A, B)
half = partial(torch.matmul, A.bfloat16(), B.bfloat16())


def setting():
    return torch.backends.mkldnn.matmul.fp32_precision


def other():
    """Another sum, in float64 and rounded."""
    return (A.double() @ B.double() + 1e-9).float()


def repeated(product):
    return lambda: [product() for _ in range(30)].pop()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """No test reads what another has measured → the folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    matmul.choose_matmul.cache_clear()
    yield tmp_path / "cache" / "demo_sdtps"
    matmul.choose_matmul.cache_clear()


@pytest.mark.parametrize(
    ("products", "taken"),
    [
        ((other, repeated(default)), {"auto", "onednn"}),
        ((repeated(other), default), {"onednn"}),
        ((default, repeated(default)), {"onednn"}),
        ((half, repeated(default)), set()),
    ],
    ids=["faster", "slower", "same, as with AVX2", "bfloat16, as with AMX"],
)
def test_onednn_is_taken_where_it_is_exact_and_for_auto_faster(products, taken):
    exact = A.double() @ B.double()
    assert not torch.equal(other(), default())
    for mode in ("auto", "onednn"):
        assert matmul.takes_onednn(mode, *products, lambda: exact) == (mode in taken)


def test_what_is_chosen_here_is_exact_and_stays_so():
    a, b = torch.rand(2, 512, 512)
    for mode in ("auto", "onednn", "default"):
        chosen = matmul.choose_matmul(mode, torch.device("cpu"))
        with matmul.onednn() if chosen == "onednn" else nullcontext():
            assert_close(a @ b, a.double() @ b.double(), 512)
        matmul.choose_matmul.cache_clear()
        assert matmul.choose_matmul(mode, torch.device("cpu")) == chosen
        assert matmul.choose_matmul(mode, torch.device("cuda")) == "default"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc names the processor")
def test_a_ratio_is_measured_once_where_it_can_be_written(cache_folder, monkeypatch):
    first = matmul.time_ratio(default, repeated(default))
    (path,) = cache_folder.glob("*.json")
    assert first < 0.75 and torch.__version__ in path.name
    assert matmul.time_ratio(repeated(default), default) == first
    path.write_text("")  # damaged
    assert matmul.time_ratio(repeated(default), default) > 1.3
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    assert matmul.time_ratio(default, repeated(default)) < 0.75


def test_the_users_setting_comes_back_from_contexts_that_overlap():
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    try:
        with ExitStack() as first, ExitStack() as second:
            first.enter_context(matmul.onednn())
            second.enter_context(matmul.onednn())
            first.close()
            assert setting() == "bf16"
        assert setting() == "ieee"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


@contextmanager
def seen_settings():
    """Context manager: (pass, setting) of every linear layer."""
    seen = set()

    def hook(layer, _, output):
        if isinstance(layer, torch.nn.Linear):
            seen.add(("training" if layer.training else "evaluation", setting()))
            if output.requires_grad:
                output.register_hook(lambda _: seen.add(("backward", setting())))

    with module.register_module_forward_hook(hook):
        yield seen
    assert setting() == "none"


@pytest.mark.parametrize("library", OPPOSITE)
def test_a_resumed_run_keeps_the_library_that_it_began_with(
    tiny_root, files, tmp_path, command, monkeypatch, library
):
    """A probe decides otherwise then; and a run with that library from the start has the same bits."""
    small = (*SMALL, "SOLVER.EVAL_UNTRAINED", "False", "SOLVER.MAX_EPOCHS", "1")
    words = cli_args_for(tiny_root, config=BASELINE, small=small)
    expected = SETTING[library]

    def train(name, probed, *more):
        monkeypatch.setattr(matmul, "takes_onednn", lambda mode, *_: "onednn" in (mode, probed))
        matmul.choose_matmul.cache_clear()
        with seen_settings() as seen:
            assert command(train_net.main, *words, "OUTPUT_DIR", tmp_path / name, *more)[0] == 0
        return seen

    with at(Trainer, "_train_step", 2, terminate):
        assert train("run", library) == {("training", expected), ("backward", expected)}
    passes = {(name, expected) for name in ("training", "backward", "evaluation")}
    assert train("run", OPPOSITE[library], "RESUME", "yes") == passes
    assert train("forced", OPPOSITE[library], "SOLVER.FLOAT32_MATMUL", library) == passes
    assert records_of(tmp_path / "run") == records_of(tmp_path / "forced")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["machine"]["matmul"] == record["resumptions"][0]["machine"]["matmul"] == library
    assert f"products: {library}\n" in (tmp_path / "run" / "log.txt").read_text()
    reid = demo_sdtps.load(tmp_path / "forced" / "last.pth", "MODEL.DEVICE", "cpu")
    with seen_settings() as seen:
        reid.features(rgb=files["rgb"][0])
    assert seen == {("evaluation", expected)}
