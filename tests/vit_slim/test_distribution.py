"""vit_slim is a distribution of its own, which needs torch alone."""

import re
import subprocess
import sys
import zipfile

import pytest
from commands import ROOT

import demo_sdtps
import vit_slim
from demo_sdtps.runtime import errors

FILES = [*(ROOT / "vit_slim").glob("*.py")]


def test_it_imports_torch_alone():
    known = {"torch", "vit_slim", *sys.stdlib_module_names}
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^ *(?:import|from(?= \S+ import)) (\w+)", text, re.MULTILINE)
        assert {*names} <= known, path


def test_its_names_are_those_of_demo_sdtps():
    assert demo_sdtps.slim is vit_slim.slim and demo_sdtps.unslim is vit_slim.unslim
    assert errors.UserError is vit_slim.UserError and vit_slim.Score.__module__ == "vit_slim.stage"


@pytest.mark.slow
def test_the_wheel_has_its_files_and_asks_for_torch(tmp_path):
    for path in (*FILES, *(ROOT / "vit_slim" / name for name in ("pyproject.toml", "README.md"))):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "py.typed").touch()
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "dist")
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as content:
        names = [name for name in content.namelist() if ".dist-info/" not in name]
        (metadata,) = (name for name in content.namelist() if name.endswith("/METADATA"))
        text = content.read(metadata).decode()
    assert sorted(names) == sorted(
        f"vit_slim/{name}" for name in ("py.typed", *(f.name for f in FILES))
    )
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist")]
    assert required == ["Requires-Dist: torch>=2.6"]
