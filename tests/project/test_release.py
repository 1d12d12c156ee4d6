"""A release: the archives of `python -m build`, installed in environments of their own, and the workflow that publishes."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch
import yaml
from commands import ROOT, cli_args_for

import demo_sdtps

SITE = Path(torch.__file__).resolve().parents[1]
VERSION = demo_sdtps.__version__
ADDRESS = "https://example.org/demo"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
SLIM = """
import demo_sdtps, timm, torch
from pathlib import Path
assert "site-packages" in Path(demo_sdtps.__file__).parts, demo_sdtps.__file__
model = timm.create_model("vit_tiny_patch16_224", depth=6).eval()
counts = []
model.blocks[-1].register_forward_hook(lambda _, inputs, tokens: counts.append(tokens.shape[1]))
with torch.no_grad():
    model(images := torch.randn(1, 3, 224, 224))
    demo_sdtps.slim(model)(images)
print(*counts)
"""


def run(*words, cwd, **environment):
    """A process that knows nothing of the checkout → what it prints."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=known | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def workflow():
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the files that git knows, of which the workflow has made `dist` by its commands for a tag of this version."""
    folder = tmp_path_factory.mktemp("checkout")
    names = run("git", "ls-files", cwd=ROOT).splitlines()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            (folder / name).write_bytes((ROOT / name).read_bytes())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = {
        step["name"]: step["run"] for step in workflow()["jobs"]["build"]["steps"] if "run" in step
    }
    for name in ("version", "build"):
        shell = ("bash", "-e", "-c", commands[name])
        run(*shell, cwd=folder, GITHUB_REF_NAME=f"v{VERSION}", REPO_URL=ADDRESS, PATH=path)
    with pytest.raises(AssertionError):
        run("bash", "-e", "-c", commands["version"], cwd=folder, GITHUB_REF_NAME="v9.9.9")
    return folder


@pytest.mark.slow
def test_the_archives_hold_the_package_alone(checkout):
    """The wheel is made of the source archive, which so has what its own build needs."""
    wheel, archive = sorted(
        (checkout / "dist").glob("demo_sdtps*"), key=lambda path: path.suffix == ".gz"
    )
    with tarfile.open(archive) as content:
        names = {tuple(Path(name).parts[1:]) for name in content.getnames()}
    assert archive.name == f"demo_sdtps-{VERSION}.tar.gz"
    assert {parts[0] for parts in names if parts} == {
        *("LICENSE", "PKG-INFO", "README.md", "configs", "demo_sdtps", "demo_sdtps.egg-info"),
        *("pyproject.toml", "seps", "setup.cfg", "setup.py"),
    }
    with zipfile.ZipFile(wheel) as content:
        content.extractall(checkout / "wheel")
        installed = {name for name in content.namelist() if ".dist-info/" not in name}
    tracked = run("git", "ls-files", "demo_sdtps", "seps", "configs", cwd=ROOT).splitlines()
    packaged = {re.sub("^configs/", "demo_sdtps/configs/", name) for name in tracked}
    assert installed == packaged
    (metadata,) = distributions(path=[str(checkout / "wheel")])
    (entry,) = metadata.entry_points
    assert (entry.name, entry.value) == ("demo-sdtps", "demo_sdtps.commands:main")
    page = metadata.metadata.get_payload()
    links = re.findall(r'\]\(([^)]*)|(?:src|srcset)="([^"]*)', page)
    assert metadata.version == VERSION and len(links) > 10
    assert all("".join(link).startswith("https://") for link in links), links
    assert metadata.metadata["Home-page"] == ADDRESS


@pytest.mark.slow
def test_a_wheel_runs_in_an_environment_of_its_own(checkout, tiny_root, tmp_path):
    """Without a download: a .pth file adds the packages installed here, but for editable ones, to the new environment."""
    wheels = sorted((checkout / "dist").glob("*.whl"))  # also that of vit_slim
    environment, place = tmp_path / "environment", tmp_path / "place"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{SITE}\n")
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", *options)
    run(*pip, *wheels, cwd=tmp_path)
    place.mkdir()
    program = environment / "bin" / "demo-sdtps"
    assert run(program, "--version", cwd=place).split()[-1] == VERSION
    words = cli_args_for(tiny_root, "SOLVER.MAX_EPOCHS", 1, config="Synthetic/DeMo_SDTPS.yml")
    run(program, "train", *words, "OUTPUT_DIR", "run", cwd=place)
    assert (place / "run" / "last.pth").is_file()
    assert "usage: " in run(python, "-m", "seps", "--help", cwd=place)
    dense, slimmed = map(int, run(python, "-c", SLIM, cwd=place).split())
    # of 196 patches 137, the class token and the extra one
    assert (dense, slimmed) == (197, 139)


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    heading = f"## [{VERSION}] - {citation['date-released']}"
    assert heading in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
