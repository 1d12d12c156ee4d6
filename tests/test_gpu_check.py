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

from demo_sdtps.benchmarks.run import headline
from demo_sdtps.tools import bundle, gpu_check
from demo_sdtps.tools.gpu_checks import Found, Place

PARTS = ("attention", "loss", "waiting", "memory", "seps")
LACKING = ("yacs", "fvcore", "iopath", "portalocker", "termcolor", "tabulate", "pytest", "tqdm")
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


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run of some parts, of which one has a limit of 0, one raises and one crashes → its process and its JSON."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "broken.py").write_text(BROKEN)
    done = subprocess.run([sys.executable, str(folder / "broken.py"), str(ROOT / "tests" / "alone"), "--device", "cpu",
                           "--quick", "--only", *PARTS, "--json", str(folder / "x.json")], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done, json.loads((folder / "x.json").read_text())


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
    """A copy of the checkout, and an interpreter that has the packages of this one but for LACKING → (checkout, python)."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copytree(ROOT / "demo_sdtps", folder / "checkout" / "demo_sdtps", symlinks=True)
    for linked in (path for path in (ROOT / "demo_sdtps").iterdir() if path.is_symlink()):
        copy = shutil.copytree if linked.is_dir() else shutil.copyfile
        copy(linked.resolve(), folder / "checkout" / linked.name)
    venv.create(folder / "venv", symlinks=True)
    packages = Path(torch.__file__).parents[1]
    (goal,) = (folder / "venv" / "lib").glob("python*/site-packages")
    hidden = {f"{name}-" for name in LACKING} | {"__editable__", "_virtualenv", "demo_sdtps", "demo-sdtps"}
    for path in packages.iterdir():
        if path.stem not in LACKING and not path.name.startswith(tuple(hidden)) and path.suffix != ".pth":
            (goal / path.name).symlink_to(path)
    return folder / "checkout", folder / "venv" / "bin" / "python"


def run_bare(bare, *words):
    checkout, python = bare
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(python), str(checkout / "tools" / "gpu_check.py"), *words], capture_output=True, text=True,
                          cwd=checkout.parent, env=environment)


@pytest.mark.slow
@pytest.mark.soak
def test_an_interpreter_that_lacks_packages_takes_them_from_the_bundle(bare, capsys):
    checkout, python = bare
    there = f"from importlib.util import find_spec; print([name for name in {('torch', *LACKING)!r} if find_spec(name)])"
    found = subprocess.run([str(python), "-c", there], capture_output=True, text=True)
    assert found.stdout.strip() == "['torch']", found.stderr
    done = run_bare(bare, "--device", "cpu", "--quick", "--only", "loss")
    assert done.returncode == 2 and done.stderr.startswith(ONE_LINE) and len(done.stderr.splitlines()) == 1
    assert "has no tqdm, yacs;" in done.stderr and "--bundle" in done.stderr

    gpu_check.make_bundle(checkout / "bundle")
    assert "yacs" in capsys.readouterr().out
    done = run_bare(bare, "--device", "cpu", "--quick", "--only", "loss")
    assert done.returncode == 0 and "| loss | a loss" in done.stdout and "1 passed" in done.stdout, done.stderr


def test_a_bundle_is_not_written_over(tmp_path, command):
    code, _, stderr = command(gpu_check.main, "--bundle", tmp_path)
    assert code == 2 and stderr.startswith(ONE_LINE) and "already exists" in stderr and not list(tmp_path.iterdir())


def test_compiled_packages_are_not_bundled():
    found = bundle.required()
    assert {"yacs", "timm", "pytest", "tqdm", "pyyaml", "pluggy"} <= found.keys() and not {"torch", "numpy"} & found.keys()


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
