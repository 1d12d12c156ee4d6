"""Shared by all tests."""

import multiprocessing
import os
import shlex
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

# Threads that wait give their core away: the tests run beside processes of their own. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import golden_cases
import numpy as np
import torch

# The processes that tests start import demo_sdtps from this checkout, installed or not; the tests' own
# path is in pyproject.toml.
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# Each test process computes with one thread, and so do the processes that it starts: there are as many as there are cores.
THREADS = int(os.environ.get("TEST_THREADS", 1))
os.environ["OMP_NUM_THREADS"] = str(THREADS)
# Nothing may reach for a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(THREADS)
# A shell script starts what it runs in the background with Ctrl-C ignored, nohup with SIGHUP, and every process of the tests
# would inherit that.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

GPU = os.environ.get("GPU_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else None)
"""The device of tests marked gpu; GPU_TEST_DEVICE=cpu tries them where there is none."""
PROGRESS = ("reading images", "verifying images", "extracting features")
"""Titles of progress bars, which may remain in stderr."""
LONGEST = shlex.split(
    "distributed slim_training report_page table_processes slimming_model release package "
    "golden_models runs demo slim resume calibration search_command "
    "fast_model gumbel"
)
"""Files test_….py that begin first, so that no process has a long one left when the others are done."""


def pytest_collection_modifyitems(items):
    """The longest files first; the tests of a file that compares by numeric.py are marked. No test has to run alone: memory is
    measured in a process, torchrun chooses a free port, files are written below the test's folder, no time is asserted."""
    for item in items:
        if {"assert_close", "assert_order", "tolerance"} & vars(item.module).keys():
            item.add_marker("numeric")
    first = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))


def pytest_pycollect_makeitem(name, obj):
    """`test_loader` and other functions of the package are no tests, though their names begin like those of tests."""
    return [] if getattr(obj, "__module__", "").startswith("demo_sdtps") else None


def pytest_generate_tests(metafunc):
    """Where there is a GPU, tests of golden cases run there too, but for those of the slow references and of learning rates."""
    name = metafunc.definition.nodeid
    if (
        GPU
        and hasattr(metafunc.module, "load_case")
        and "golden" in name
        and "agree" not in name
        and "schedule" not in name
    ):
        metafunc.parametrize(
            "golden_device",
            ["cpu", pytest.param(GPU, marks=pytest.mark.gpu, id="gpu")],
            indirect=True,
        )


@pytest.fixture
def gpu():
    """The GPU, without which the test is skipped. float32 is float32 there."""
    if not GPU:
        pytest.skip("torch finds no GPU here")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device(GPU)


@pytest.fixture(autouse=True)
def golden_device(request):
    """Context manager: golden cases and new tensors are on this device."""
    if not hasattr(request, "param"):
        yield
        return
    if request.param == GPU:
        request.getfixturevalue("gpu")
    golden_cases.DEVICE = torch.device(request.param)
    with golden_cases.DEVICE:
        yield
    golden_cases.DEVICE = torch.device("cpu")


@pytest.fixture(scope="module")
def shallow():
    """Models of this process have two blocks, for tests in which their depth does not matter."""
    import timm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timm, "create_model", partial(timm.create_model, depth=2))
        yield


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory):
    """A DATASETS.ROOT_DIR of 6 + 4 synthetic identities, 8 triplets each, 32×16 pixels; not to be changed by tests."""
    from synthetic import commands as synthetic

    root = tmp_path_factory.mktemp("data")
    sizes = "--identities 6 --test_identities 4 --images_per_camera 2 --height 32 --width 16"
    synthetic.triplets(["--root", str(root), *sizes.split(), "--workers", "1"])
    return root


@pytest.fixture(scope="session")
def files(tiny_root):
    """Paths of some gallery triplets of `tiny_root` by "rgb", "ni" and "ti", sorted by name."""
    from commands import SHOWN

    folder = tiny_root / "RGBNT201" / "test"
    return {name.lower(): sorted((folder / name).iterdir())[:SHOWN] for name in ("RGB", "NI", "TI")}


@pytest.fixture(scope="session")
def shapes_root(tmp_path_factory):
    """A DATASETS.ROOT_DIR with `seps_tiny.SIZES` synthetic shapes, 32×32 pixels, and a BERT; not to be changed by tests."""
    from seps_tiny import CAPTIONS, SIZES

    from synthetic import commands as synthetic

    root = tmp_path_factory.mktemp("shapes")
    sizes = [
        f"--images={SIZES['train']}",
        *(f"--{name}_images={SIZES[name]}" for name in ("dev", "test")),
    ]
    words = ["--root", str(root), *sizes, f"--captions={CAPTIONS}", "--size=32"]
    synthetic.captioned(words)
    return root


@pytest.fixture(scope="module")
def host():
    """The checkout's `config` and `modeling`, which leave this process with the module's tests."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tests" / "reference" / "demo_host")
        from config import cfg
        from modeling import make_model

        yield cfg, make_model
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("config", "modeling"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def fused_words(shallow, tiny_root, tmp_path_factory):
    """The command line of an untrained model with SDTPS, HDM and ATMoE, to which a test adds TEST.MISS."""
    from commands import CONFIG, FUSION, cli_args_for, weights_file

    from demo_sdtps.config import load_cfg

    words = cli_args_for(tiny_root, *FUSION)
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    return [*words, "TEST.WEIGHT", str(weights_file(path, load_cfg(CONFIG, words[2:])))]


@pytest.fixture
def own_root(tiny_root, tmp_path):
    """A copy of `tiny_root` that a test may damage."""
    return Path(shutil.copytree(tiny_root, tmp_path / "own"))


@pytest.fixture
def command(capsys):
    """Call a command's `main` in this process as the shell would: → (exit code, stdout, stderr)."""
    import commands

    def call(main, *words):
        capsys.readouterr()
        code = commands.call(words, main)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def success(command):
    """Call a command, which must succeed: → what it prints."""

    def call(main, *words):
        code, stdout, stderr = command(main, *words)
        assert code == 0, stderr
        return stdout

    return call


@pytest.fixture
def exported_arrays(success, tmp_path):
    """Call demo-sdtps export: → the arrays that it writes, by their names."""
    from demo_sdtps.commands import export

    path = tmp_path / "x.npz"

    def call(*words):
        stdout = success(export.features, "--overwrite", "--output", path, *words)
        assert str(path) in stdout
        with np.load(path) as arrays:
            return dict(arrays)

    return call


@pytest.fixture
def refusal(command, tmp_path, monkeypatch):
    """Call a command in `tmp_path`, which must end with a sentence and exit code 2, and change no file there → the sentence."""
    from commands import ONE_LINE, contents

    def call(main, *words):
        monkeypatch.chdir(tmp_path)
        before = contents(tmp_path)
        code, stdout, stderr = command(main, *words)
        assert code == 2 and not stdout and "Traceback" not in stderr, stderr
        assert contents(tmp_path) == before
        # A progress bar that is wiped away leaves a carriage return and blanks before the line.
        lines = stderr.replace("\r", "\n").splitlines()
        message = "\n".join(
            line for line in lines if line.strip() and not line.startswith(PROGRESS)
        )
        assert message.startswith(ONE_LINE)
        return message.removeprefix(ONE_LINE)

    return call


@pytest.fixture
def no_process_left():
    """Fails the test if it ends with a process of its own still running."""
    before = set(multiprocessing.active_children())
    yield
    assert not set(multiprocessing.active_children()) - before
