"""tools/gpu_check.py, on a CPU: its table, its failures, and an interpreter that lacks packages."""
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from commands import ONE_LINE, ROOT

from demo_sdtps.benchmarks.record import headline
from demo_sdtps.tools import bundle, gpu_check
from demo_sdtps.tools.gpu_checks import Found, Place

PARTS = ("attention", "loss", "waiting", "memory", "seps")
OWN = ("torch", "torchvision", "numpy", "pillow")
LACKING = ("timm", "yacs", "yaml", "fvcore", "scipy", "tqdm", "simplejpeg", "matplotlib", "tensorboard", "google.protobuf",
           "grpc", "safetensors", "huggingface_hub", "pytest", "sklearn", "transformers", "psutil", "demo_sdtps")
BROKEN = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from demo_sdtps.tools import gpu_check, gpu_checks
# Here and, as its module is imported again, in the process of the checks.
gpu_checks.NEAR["off"] = 0.0
gpu_check.PARTS["loss"] = gpu_check.Part("a check that raises", lambda place: [1 / 0])
gpu_check.PARTS["memory"] = gpu_check.Part("a check that ends its process", lambda place: os._exit(7))
if __name__ == "__main__":
    gpu_check.run(gpu_check.main)
"""
HANGING = """
import subprocess, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from demo_sdtps.tools import gpu_check
from demo_sdtps.tools.gpu_checks import Place

def hang(place):
    told = f"import os; open(f'{place.folder}/{{os.getpid()}}.pid', 'w'); import time; time.sleep(600)"
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
                    "--nproc_per_node=2", "--no-python", sys.executable, "-c", told])
    yield

gpu_check.PARTS["processes"] = gpu_check.Part("processes that hang", hang)
if __name__ == "__main__":
    folder = Path(sys.argv[2])
    worker = gpu_check.Worker(Place(torch.device("cpu"), True, folder))
    worker.connection.send("processes")
    while len(list(folder.glob("*.pid"))) < 2:
        assert worker.process.is_alive()
        time.sleep(0.1)
    worker.end(patience=0)
    print(*(path.stem for path in folder.glob("*.pid") if Path("/proc", path.stem).exists()))
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run of some parts, of which one has a limit of 0, one raises and one crashes → its process and its JSON."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "broken.py").write_text(BROKEN)
    done = subprocess.run([sys.executable, str(folder / "broken.py"), str(ROOT / "tests" / "alone"), "--device", "cpu",
                           "--quick", "--only", *PARTS, "--json", str(folder / "x.json")], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done, json.loads((folder / "x.json").read_text())


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_processes_of_torchrun_end_with_a_part_that_is_stopped(tmp_path):
    (tmp_path / "hanging.py").write_text(HANGING)
    done = subprocess.run([sys.executable, str(tmp_path / "hanging.py"), str(ROOT / "tests" / "alone"), str(tmp_path)],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stdout.strip(), done.stderr + done.stdout


def results(record, part):
    return {one["what"]: one for one in record["checks"] if one["part"] == part}


@pytest.mark.slow
@pytest.mark.soak
def test_what_fails_is_told_and_the_others_go_on(broken):
    done, record = broken
    assert done.returncode == 1 and not done.stderr
    for what, one in results(record, "attention").items():
        is_exact = "SOLVER.AMP off" in what
        assert one["result"] == ("failed" if is_exact else "passed") and 0 < one["figure"] < 0.02 and one["seconds"] >= 0, what
        assert one["limit"] == (0 if is_exact else 0.02)
    (raised,), (crashed,) = (results(record, part).values() for part in ("loss", "memory"))
    assert raised["result"] == crashed["result"] == "failed"
    assert raised["note"] == "ZeroDivisionError: division by zero" and "ended with code 7" in crashed["note"]
    (skipped,) = results(record, "waiting").values()
    assert skipped["result"] == "skipped" and "needs a GPU" in skipped["note"]
    assert record["rows"][0]["ours"] > 0 and "SEPS" in record["rows"][0]["what"]


@pytest.mark.slow
@pytest.mark.soak
def test_the_table_is_what_the_json_holds(broken):
    done, record = broken
    assert done.stdout.strip() == gpu_check.report(record) and done.stdout.startswith(headline(record))
    assert record["quick"] and record["machine"]["device"] == "cpu"
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(lines) == 4 + len(record["checks"]) + len(record["rows"])
    for one in record["checks"]:
        assert any(line.startswith(f"| {one['part']} | {one['what']} | {one['result']} |") for line in lines)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A copy of the checkout, and an interpreter that has OWN and what these need alone → (checkout, python)."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copytree(ROOT / "demo_sdtps", folder / "checkout" / "demo_sdtps", symlinks=True)
    for linked in (path for path in (ROOT / "demo_sdtps").iterdir() if path.is_symlink()):
        copy = shutil.copytree if linked.is_dir() else shutil.copyfile
        copy(linked.resolve(), folder / "checkout" / linked.name)
    shutil.copytree(ROOT / "tests", folder / "checkout" / "tests", symlinks=True)
    for name in ("pyproject.toml", "Makefile"):
        shutil.copyfile(ROOT / name, folder / "checkout" / name)
    venv.create(folder / "venv", symlinks=True)
    (goal,) = (folder / "venv" / "lib").glob("python*/site-packages")
    packages = Path(torch.__file__).parents[1]
    files = [file for found in bundle.required(OWN, without=()).values() for file in found.files]
    for name in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        (goal / name).symlink_to(packages / name)
    return folder / "checkout", folder / "venv" / "bin" / "python"


def run_bare(bare, *words):
    """What `make gpu-check` runs in the checkout, with further `words`."""
    checkout, python = bare
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made = subprocess.run(["make", "--dry-run", "gpu-check", f"PYTHON={python}"], capture_output=True, text=True, cwd=checkout)
    return subprocess.run([*made.stdout.split(), *words], capture_output=True, text=True, cwd=checkout, env=environment)


@pytest.mark.slow
@pytest.mark.soak
def test_an_interpreter_that_lacks_packages_takes_them_from_the_bundle(bare, capsys):
    checkout, python = bare
    there = f"from demo_sdtps.tools.bundle import is_there; print(*filter(is_there, {(*OWN[:3], 'PIL', *LACKING)!r}))"
    found = subprocess.run([str(python), "-c", there], capture_output=True, text=True, cwd=checkout)
    assert found.stdout.split() == ["torch", "torchvision", "numpy", "PIL", "demo_sdtps"], found.stderr
    done = run_bare(bare, "--device", "cpu", "--quick", "--only", "loss")
    assert done.returncode == 2 and done.stderr.startswith(ONE_LINE) and len(done.stderr.splitlines()) == 1
    assert "has no timm, tqdm, yacs, pyyaml;" in done.stderr and "--bundle" in done.stderr

    gpu_check.make_bundle(checkout / "bundle")
    assert "tensorboard" in capsys.readouterr().out
    done = run_bare(bare, "--device", "cpu", "--quick", "--only", "golden", "resume")
    checks = json.loads((checkout / "runs" / "gpu_check.json").read_text())["checks"]
    assert done.returncode == 0 and {one["result"] for one in checks} == {"passed"}, done.stdout + done.stderr
    assert {one["part"] for one in checks} == {"golden", "resume"}

    for name in ("pytest", "tensorboard"):
        shutil.rmtree(checkout / "bundle" / name)
    done = run_bare(bare, "--device", "cpu", "--quick", "--only", "golden", "resume")
    assert done.returncode == 1 and "\n2 not run; 0 rows of speed" in done.stdout
    for part, module in (("golden", "pytest"), ("resume", "tensorboard")):
        assert f"\nNOT CHECKED: {part}: {python} has no {module}; run python tools/gpu_check.py --bundle" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(command):
    code, _, stderr = command(gpu_check.main)
    assert code == 2 and "torch finds no GPU here" in stderr and "--device cpu" in stderr


def test_a_bundle_is_not_written_over(tmp_path, command):
    code, _, stderr = command(gpu_check.main, "--bundle", tmp_path)
    assert code == 2 and stderr.startswith(ONE_LINE) and "already exists" in stderr and not list(tmp_path.iterdir())


def test_a_bundle_is_complete(tmp_path, command, monkeypatch):
    monkeypatch.setattr(bundle, "START", (*bundle.START, "no-such-package"))
    code, _, stderr = command(gpu_check.main, "--bundle", tmp_path / "bundle")
    assert code == 2 and "This environment has no no-such-package to copy" in stderr and not (tmp_path / "bundle").exists()


def test_modules_of_a_folder(tmp_path):
    for name in ("one/__init__.py", "one/part.py", "two.py", "google/three/__init__.py", "one-1.0.dist-info/METADATA"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(bundle.modules_in(tmp_path)) == ["google.three", "one", "two"]
    assert bundle.is_there("json.decoder") and not bundle.is_there("google.three") and not bundle.is_there("no_such.part")


def test_compiled_packages_are_not_bundled():
    found = bundle.required()
    assert {"yacs", "timm", "pytest", "tqdm", "pyyaml", "pluggy", "tensorboard", "protobuf"} <= found.keys()
    assert not {"torch", "numpy", "grpcio", "safetensors"} & found.keys()


@pytest.mark.parametrize(("words", "said"), [
    (("--only", "speed"), "There is no part 'speed' to check; choose from golden, "),
    (("--json", "x.txt"), "must be a file ending in .json"),
    pytest.param(("--device", "cuda"), "is not there: this machine has 0 CUDA devices",
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU"))])
def test_what_a_user_gets_wrong(words, said, command):
    code, stdout, stderr = command(gpu_check.main, *words)
    assert code == 2 and not stdout and stderr.startswith(ONE_LINE) and said in stderr


@pytest.mark.parametrize(("found", "result"), [
    (Found("", 1.0, 1.0), "passed"), (Found("", 1.1, 1.0), "failed"), (Found("", float("nan"), 1.0), "failed"),
    (Found("", 3.0), "measured"), (Found("", given="skipped"), "skipped"), (Found("", 0.1, 1.0, given="failed"), "failed")])
def test_results(found, result):
    assert found.result == result


def test_no_time_left(tmp_path):
    place = Place(torch.device("cpu"), True, tmp_path)
    checks, rows = gpu_check.check(place, ["golden", "seps"], deadline=0)
    assert [one["result"] for one in checks] == ["not run", "not run"] and not rows
