"""One import name: what a user's environment sees of the project, in a checkout, installed, and beside other packages."""
import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch
from commands import ROOT, cli_args_for
from PIL import Image

import demo_sdtps
from demo_sdtps.config import load_cfg
from demo_sdtps.modeling import make_model
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from demo_sdtps.modeling.slimming.scores.base import Score
from demo_sdtps.training.record import commit

ROOMS = ("runtime", "config", "datasets", "modeling", "evaluation", "retrieval", "training", "seps", "reports",
         "tools", "benchmarks")
"""Folders of a checkout; each imports only those before it."""
COMMON = ("config", "configs", "datasets", "evaluation", "modeling", "reports",
          "retrieval", "runtime", "training", "tools", "seps", "synthetic", "benchmarks",
          "studies", "tests")
"""Names of folders of a checkout that other packages and projects have too."""
UNINSTALLED = ROOT / "tests" / "uninstalled"
FOLDERS = (".", "tools", "benchmarks", "studies")
SCRIPTS = sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).glob("*.py")
                 if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8"))


def python(*words, cwd, **environment):
    """Run a Python in which the project is not installed → the completed process."""
    path = os.pathsep.join(filter(None, [str(UNINSTALLED), environment.pop("PYTHONPATH", "")]))
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False,
                          env=os.environ | environment | {"PYTHONPATH": path})


def test_the_project_is_not_installed_for_these_tests(tmp_path):
    done = python("-c", "import demo_sdtps", cwd=tmp_path)
    assert "ModuleNotFoundError: No module named 'demo_sdtps'" in done.stderr


@pytest.mark.slow
def test_no_command_finds_a_folder_of_the_checkout_under_a_common_name(tmp_path):
    """From the root too, which is where most users stand, and at the end of its imports."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import contextlib, importlib.util, io, json, os, runpy, sys
found, path = {{}}, sys.path[1:]
for script in {SCRIPTS!r}:
    sys.modules.pop("demo_sdtps.script", None)  # each command is a process of its own
    sys.path[:], sys.argv = [os.path.dirname(os.path.abspath(script)), *path], [script, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as help:
        runpy.run_path(script, run_name="__main__")
    assert "usage:" in help.getvalue(), script
    found[script] = [name for name in {COMMON!r} if importlib.util.find_spec(name)]
print(json.dumps([found, sys.modules["demo_sdtps"].__file__]))
""")
    done = python(program, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found, package = json.loads(done.stdout)
    assert found == {script: [] for script in SCRIPTS} and Path(package) == ROOT / "demo_sdtps" / "__init__.py"


def test_a_command_runs_beside_other_packages_of_common_names(tmp_path):
    """Such as Hugging Face's datasets, or a config.py of the user's own, found before anything else."""
    for name in COMMON:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('another package')")
    done = python(ROOT / "tools" / "export_features.py", "--help", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr


def test_sdtps_needs_torch_alone(tmp_path):
    program = ("import sys\nsys.path.insert(0, sys.argv[1])\n"
               "for name in ('timm', 'yacs', 'torchvision', 'numpy', 'PIL', 'transformers'):\n    sys.modules[name] = None\n"
               "from demo_sdtps.modeling.sdtps import MultiModalSDTPS\n"
               "import demo_sdtps\nassert demo_sdtps.MultiModalSDTPS is MultiModalSDTPS\n"
               "print(sum(p.numel() for p in MultiModalSDTPS().parameters()))")
    done = python("-c", program, ROOT, cwd=tmp_path)
    assert done.stdout.strip() == "365157", done.stderr


@pytest.mark.slow
def test_a_checkout_without_links_is_found_too(tmp_path):
    """As git makes one where the system has no symbolic links: text files in their place."""
    folder = tmp_path / "demo_sdtps"
    folder.mkdir()
    for path in (ROOT / "demo_sdtps").iterdir():
        if path.is_symlink():
            (folder / path.name).write_text(os.readlink(path))
            (tmp_path / path.name).symlink_to(ROOT / path.name)
        elif path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    program = ("import sys\nsys.path.insert(0, sys.argv[1])\nfrom demo_sdtps import get_cfg, make_model, train_net\n"
               "print(get_cfg().MODEL.NAME, make_model.__module__, train_net.main.__module__)")
    done = python("-c", program, tmp_path, cwd=ROOT.parent)
    assert done.stdout.split() == ["DeMo", "demo_sdtps.modeling.demo", "demo_sdtps.commands.train"], done.stderr


def test_the_names_of_the_document_are_there_and_its_examples_run(tmp_path, monkeypatch):
    cfg = load_cfg("Synthetic/DeMo_SDTPS.yml")
    save_checkpoint(tmp_path / "runs" / "demo" / "best.pth", cfg, make_model(cfg, 60, 4), 1)
    for name in ("a.jpg", "b.jpg", "b.png", "c.jpg", "d.jpg", "a_ni.png", "query.jpg"):
        Image.new("RGB", (40, 90)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    page, extending, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/api.md", "docs/extending.md",
                                                                                      "README.md"))
    names = [name for line in page.splitlines() if line.startswith("| `") for name in re.findall(r"`(demo_sdtps[\w.]*)", line)]
    assert len(names) > 12
    for name in names:
        assert exists(name), name
    found = {}
    for example in re.findall(r"```python\n(.*?)```", page + extending, re.S):
        if "onnxruntime" not in example and re.search("^(from|import|\"\"\"Standard)", example):
            exec(example, found)  # test_export_onnx.py runs that of ONNX Runtime
    exec(re.search(r"```python\n(import.*?)```", readme, re.S)[1], own := {})
    assert own["rows"].shape == own["distances"].shape == (1, 2) and own["gallery"].shape == (2, own["reid"].widths[3])
    assert found["rows"].shape == (1, 2) and found["features"].shape == (1, found["reid"].widths[3])
    assert found["model"].num_class == 60 and found["cfg"].SOLVER.SEED == 1 and issubclass(found["Contrast"], Score)


def exists(name):
    """As a module, or as what one defines."""
    parent, _, leaf = name.rpartition(".")
    try:
        return bool(import_module(name))
    except ModuleNotFoundError:
        return hasattr(import_module(parent), leaf)


@pytest.mark.parametrize("name", ["RGBNT201/DeMo_SDTPS.yml", "configs/RGBNT201/DeMo_SDTPS.yml"])
def test_the_packages_own_configurations_are_found_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_cfg(name) == load_cfg(ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml")
    Path(name).parent.mkdir(parents=True)
    Path(name).write_text("SOLVER:\n  SEED: 5\n")
    assert load_cfg(name).SOLVER.SEED == 5  # one of the user's own comes first


@pytest.mark.slow
def test_a_wheel_trains_without_a_checkout(tiny_root, tmp_path):
    """The wheel is built from the source archive, so that both are seen to be whole."""
    def built(*command):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (file,) = set(tmp_path.glob("demo_sdtps-*")) - before
        return file

    before = set()
    archive = built("setup.py", "--quiet", "sdist", "--dist-dir", tmp_path)
    before.add(archive)
    file = built("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, archive)
    with zipfile.ZipFile(file) as content:
        content.extractall(tmp_path / "site")
    assert {path.name.partition("-")[0] for path in (tmp_path / "site").iterdir()} == {"demo_sdtps"}
    words = cli_args_for(tiny_root, "OUTPUT_DIR", "run", "SOLVER.MAX_EPOCHS", "1", config="Synthetic/DeMo_SDTPS.yml")
    done = python("-m", "demo_sdtps.commands.train", *words, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    content = torch.load(tmp_path / "run" / "last.pth", weights_only=True)
    assert content["epoch"] == 1
    script = python(tmp_path / "site" / "demo_sdtps" / "tools" / "report.py", "--help", cwd=tmp_path,
                    PYTHONPATH=str(tmp_path / "site"))
    assert "usage:" in script.stdout, script.stderr
    (installed,) = distributions(path=[str(tmp_path / "site")])
    (entry,) = installed.entry_points
    assert (entry.name, installed.version) == ("demo-sdtps", demo_sdtps.__version__)
    program = f"import sys; from {entry.module} import {entry.attr}; sys.exit({entry.attr}())"
    one = python("-c", program, "test", "--help", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert one.stdout.startswith("usage: demo-sdtps test "), one.stderr


@pytest.mark.slow
def test_loading_processes_that_are_spawned_find_the_package(tiny_root, tmp_path):
    """As on macOS and Windows: such a process imports the script again, without what the script had on its path."""
    hidden = (UNINSTALLED / "sitecustomize.py").read_text(encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(f"{hidden}\nimport multiprocessing\nmultiprocessing.set_start_method('spawn')\n")
    words = cli_args_for(tiny_root, "OUTPUT_DIR", "run", "SOLVER.MAX_EPOCHS", "1", "DATALOADER.NUM_WORKERS", "1")
    done = python(ROOT / "train_net.py", *words, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_a_run_of_an_installed_package_names_no_commit_of_the_users_project(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert commit(tmp_path / "site-packages" / "demo_sdtps") == {"commit": None, "changed": None}


def test_imports_go_one_way():
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                module = (getattr(node, "module", None) or "").split(".") if isinstance(node, ast.ImportFrom) else []
                if module[:1] == ["demo_sdtps"] and module[1:2] and module[1] in ROOMS:
                    assert ROOMS.index(module[1]) <= ROOMS.index(room), f"{path}:{node.lineno}"
                    assert (room, module[1]) != ("modeling", "datasets"), f"{path}:{node.lineno}"


def test_features_of_own_images_need_no_command_line():
    done = python("-c", """
import sys
from demo_sdtps import Extractor, load
print([name for name, module in sys.modules.items() if name.startswith("demo_sdtps") and hasattr(module, "argparse")])""",
                  cwd=ROOT)
    assert done.stdout.split() == ["[]"], done.stderr
