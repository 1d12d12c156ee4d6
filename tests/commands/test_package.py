"""One import name: what a user's environment sees of the project, in a checkout, installed, and beside other packages."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from commands import ROOT, cli_args_for
from PIL import Image

from demo_sdtps.config import load_cfg
from demo_sdtps.modeling.checkpoints.loading import save_checkpoint
from demo_sdtps.modeling.demo import make_model
from vit_slim import Score

PARTS = ["vit_slim", "demo_sdtps", "seps", "synthetic", "tests", "benchmarks", "studies", "tools"]
ROOMS = ["runtime", "config", "datasets", "modeling", "evaluation", "plug_in", "retrieval"]
ROOMS += ["training", "reports", "commands"]
"""Each may import those before it; tests import all."""
"""Parts of the repository, and folders of the package; each imports only those before it."""
LINKS = {"modeling", "config", "datasets"}
"""Names at the root of a checkout that lead into the package; nothing depends on them."""
RUN = ("OUTPUT_DIR", "run", "SOLVER.MAX_EPOCHS", "1")
SITE = Path(torch.__file__).resolve().parents[1]
"""What is installed. As a plain folder on PYTHONPATH its .pth files are not read, and so no editable installation."""


def python(*words, cwd, **environment):
    """Run a Python in which the project is not installed → the completed process."""
    path = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(SITE)]))
    return subprocess.run(
        [sys.executable, "-S", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment | {"PYTHONPATH": path},
    )


@pytest.mark.parametrize("words", [["train_net.py"], ["-m", "demo_sdtps.commands"]], ids=" ".join)
def test_a_checkout_that_is_not_installed_runs(words):
    done = python(*words, "--help", cwd=ROOT)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr


ALONE = """
import ast, pathlib, sys
for name in "fvcore numpy PIL scipy timm torchvision tqdm transformers yacs".split():
    sys.modules[name] = None
import torch
from torch import nn
import demo_sdtps
from demo_sdtps.modeling.sdtps import MultiModalSDTPS
assert demo_sdtps.MultiModalSDTPS is MultiModalSDTPS
print(sum(p.numel() for p in MultiModalSDTPS().parameters()))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True) for _ in range(2))
    def forward(self, images):
        tokens = self.conv(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens
model = demo_sdtps.slim(Model(), (1,), (0.5,), blocks_at="blocks")
print(model(torch.randn(1, 3, 16, 16)).shape[1])
del sys.modules["yacs"]
before = set(sys.modules)
from demo_sdtps import add_config, patch
print(add_config.__name__, patch.__name__)
for module in [module for name, module in sys.modules.items() if name.startswith("demo_sdtps") and name not in before]:
    tree = ast.parse(text := pathlib.Path(module.__file__).read_text(), feature_version=(3, 8))
    typed = any(isinstance(part, ast.Subscript) for node in ast.walk(tree) for name in ("annotation", "returns")
                if getattr(node, name, None) for part in ast.walk(getattr(node, name)))
    assert not typed or "from __future__ import annotations" in text, module
"""


@pytest.mark.slow
def test_sdtps_and_slim_need_torch_alone_and_patch_yacs_too(tmp_path):
    """And `patch` the syntax of Python 3.8, which DeMo pins."""
    done = python("-c", ALONE, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout.split() == ["365157", "8", "add_config", "patch"], done.stderr


def test_names_are_listed_without_an_import_of_torch():
    program = """
import sys, demo_sdtps
sys.exit(bool({*demo_sdtps.__all__} - {*dir(demo_sdtps)}) or "torch" in sys.modules)"""
    assert python("-c", program, cwd=ROOT).returncode == 0


@pytest.mark.slow
@pytest.mark.soak
def test_a_checkout_without_links_trains(tiny_root, tmp_path):
    """As where the system has no symbolic links, or in an archive: with text files in their place, as git writes them."""
    files = subprocess.run(
        ["git", "ls-files", "demo_sdtps", "configs", "train_net.py", *LINKS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(
            os.readlink(ROOT / name).encode() if name in LINKS else (ROOT / name).read_bytes()
        )
    words = cli_args_for(tiny_root, *RUN, config="configs/Synthetic/DeMo_SDTPS.yml")
    done = python("train_net.py", *words, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "run" / "last.pth").exists(), done.stderr


def test_the_names_of_the_document_are_there_and_its_examples_run(tmp_path, monkeypatch):
    cfg = load_cfg("Synthetic/DeMo_SDTPS.yml")
    save_checkpoint(tmp_path / "runs" / "demo" / "best.pth", cfg, make_model(cfg, 60, 4), 1)
    for name in ("a.jpg", "b.jpg", "b.png", "c.jpg", "d.jpg", "a_ni.png", "query.jpg"):
        Image.new("RGB", (40, 90)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    names = ("docs/api.md", "docs/develop.md", "docs/search.md", "README.md")
    page, develop, search, start = ((ROOT / name).read_text(encoding="utf-8") for name in names)
    (features,) = re.findall(r"^## In Python\n(.*?)^## ", search, re.S | re.M)
    names = re.findall(r"^\| `(demo_sdtps[\w.]*)", page, re.M)
    assert len(names) > 12
    for name in names:
        resolve_name(name)
    actual = {}
    for example in re.findall(r"```python\n(.*?)```", page + develop + features, re.S):
        if "onnxruntime" not in example and re.search('^(from|import|"""Standard)', example):
            exec(example, actual)  # test_export_onnx.py runs that of ONNX Runtime
    exec(re.search(r"```python\n(import.*?)```", start, re.S)[1], readme := {})
    assert readme["rows"].shape == readme["distances"].shape == actual["rows"].shape == (1, 2)
    assert readme["gallery"].shape == (2, readme["reid"].widths[3])
    assert actual["features"].shape == (1, actual["reid"].widths[3])
    assert actual["model"].num_class == 60 and actual["cfg"].SOLVER.SEED == 1
    assert issubclass(actual["Contrast"], Score)


@pytest.mark.parametrize("name", ["RGBNT201/DeMo_SDTPS.yml", "configs/RGBNT201/DeMo_SDTPS.yml"])
def test_the_packages_own_configurations_are_found_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_cfg(name) == load_cfg(ROOT / "configs" / "RGBNT201" / "DeMo_SDTPS.yml")
    Path(name).parent.mkdir(parents=True)
    Path(name).write_text("SOLVER:\n  SEED: 5\n")
    assert load_cfg(name).SOLVER.SEED == 5  # one of the user's own comes first


@pytest.mark.slow
@pytest.mark.soak
def test_loading_processes_that_are_spawned_find_the_package(tiny_root, tmp_path):
    """As on macOS and Windows: such a process imports the script again, without what the script had on its path."""
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, runpy, sys\nif __name__ == '__main__':\n"
        "    multiprocessing.set_start_method('spawn')\n"
        "    sys.argv = sys.argv[1:]\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    words = cli_args_for(tiny_root, *RUN, "DATALOADER.NUM_WORKERS", "1")
    done = python(program, ROOT / "train_net.py", *words, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def imported(path):
    """Names of the modules that a file imports, by dots."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)


@pytest.mark.parametrize(
    ("prefix", "names"), [("", PARTS), ("demo_sdtps.", ROOMS)], ids=["parts", "rooms"]
)
def test_imports_go_one_way(prefix, names):
    for name in (one for one in names if one != "tests"):
        paths = [*(ROOT / prefix.rstrip(".") / name).rglob("*.py")]
        assert paths
        for path in paths:
            modules = [one for one in imported(path) if one.startswith(prefix)]
            for other in {one.removeprefix(prefix).split(".")[0] for one in modules} & {*names}:
                assert names.index(other) <= names.index(name), path
                assert (name, other) != ("modeling", "datasets"), path
