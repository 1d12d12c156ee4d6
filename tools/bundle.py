"""Packages of pure Python in a folder, for a machine without a package index; imports the standard library alone.

`make` fills the folder where the packages are installed, `use` takes from it what an interpreter lacks. A folder of the bundle
holds one distribution.
"""
import os
import shutil
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "bundle"
START = ("pytest", "pyyaml", "timm", "tqdm", "yacs")
"""What tools/gpu_check.py imports beside its own machine's packages; what these need is bundled too."""
OWN = ("torch", "torchvision", "numpy")
"""Packages that a machine brings itself: compiled for its processor and its GPU."""
NEEDED = {"torch": "torch", "torchvision": "torchvision", "numpy": "numpy", "PIL": "pillow", "timm": "timm", "tqdm": "tqdm",
          "yacs": "yacs", "yaml": "pyyaml"}
"""Modules without which nothing here runs, and the distributions that hold them."""
COMPILED = (".so", ".pyd", ".dylib")
WORKS_WITHOUT = ("pyyaml",)  # distributions whose compiled part only makes them faster


def use(folder: Path = FOLDER) -> None:
    """Let this process, and those that it starts, import from `folder` what they would not find otherwise.

    Ends with one sentence on stderr and exit code 2 where what is NEEDED is still missing.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        modules = [entry.stem for entry in path.iterdir() if entry.suffix in ("", ".py")] if path.is_dir() else []
        if modules and not any(map(find_spec, modules)):
            sys.path.append(str(path))
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(path)]))
    if missing := [name for module, name in NEEDED.items() if find_spec(module) is None]:
        sys.stderr.write(f"error: The interpreter {sys.executable} has no {', '.join(missing)}; install them, or, for those of "
                         f"pure Python, run python tools/gpu_check.py --bundle {folder.name} where the project is installed "
                         f"(make setup) and copy that folder to {folder}.\n")
        sys.exit(2)


def make(folder: Path) -> tuple[list[str], list[str]]:
    """Copy START and what it needs into `folder` → the names of the copied distributions, and of those that are left out since
    they are compiled."""
    copied, left_out = [], []
    for name, found in sorted(required().items()):
        files = [file for file in found.files or () if ".." not in file.parts and "__pycache__" not in file.parts]
        is_compiled = any(file.suffix in COMPILED for file in files)
        if is_compiled and name not in WORKS_WITHOUT:
            left_out.append(name)
            continue
        for file in files:
            if file.suffix not in COMPILED:
                target = folder / name / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target)
        copied.append(name)
    return copied, left_out


def required() -> dict[str, Distribution]:
    """The distributions of START and all that they require here, by name, but for OWN."""
    from packaging.requirements import Requirement  # pytest brings it

    found: dict[str, Distribution] = {}
    asked = list(START)
    while asked:
        name = asked.pop().lower().replace("_", "-")
        if name in found or name in OWN:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # an optional one
            continue
        needs = map(Requirement, found[name].requires or ())
        asked += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found
