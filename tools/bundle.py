"""Packages of pure Python in a folder, for a machine without a package index; imports the standard library alone.

`make` fills the folder where the packages are installed, `use` takes from it what an interpreter lacks. A folder of the bundle
holds one distribution.
"""
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "bundle"
START = ("pytest", "pyyaml", "tensorboard", "timm", "tqdm", "yacs")
"""What tools/gpu_check.py imports beside its own machine's packages; what these need is bundled too."""
OWN = ("torch", "torchvision", "numpy", "pillow")
"""Packages that a machine brings itself: compiled for its processor and its GPU."""
UNUSED = ("grpcio", "markdown", "setuptools", "tensorboard-data-server", "werkzeug", "huggingface-hub", "safetensors")
"""Requirements that the checks never import: TensorBoard shows scalars with them, timm reads published weights with them."""
NEEDED = {"torch": "torch", "torchvision": "torchvision", "numpy": "numpy", "PIL": "pillow", "timm": "timm", "tqdm": "tqdm",
          "yacs": "yacs", "yaml": "pyyaml"}
"""Modules without which nothing here runs, and the distributions that hold them."""
COMPILED = (".so", ".pyd", ".dylib")
WORKS_WITHOUT = ("protobuf", "pyyaml")  # distributions whose compiled part only makes them faster


HOW_TO = (f"run python tools/gpu_check.py --bundle {FOLDER.name} where the project is installed (make setup) and copy that "
          f"folder to {FOLDER}")


def use() -> None:
    """Let this process, and those that it starts, import from FOLDER what they would not find otherwise.

    Ends with one sentence on stderr and exit code 2 where what is NEEDED is still missing.
    """
    for path in sorted(FOLDER.iterdir()) if FOLDER.is_dir() else ():
        if path.is_dir() and not all(map(is_there, modules_in(path))):
            sys.path.append(str(path))
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(path)]))
    if missing := [name for module, name in NEEDED.items() if not is_there(module)]:
        sys.stderr.write(f"error: The interpreter {sys.executable} has no {', '.join(missing)}; install what is compiled "
                         f"({', '.join(OWN)}), and for the rest {HOW_TO}.\n")
        sys.exit(2)


def modules_in(folder: Path) -> Iterator[str]:
    """The names by which what is in `folder` is imported; of a namespace package, those of its parts."""
    for entry in folder.iterdir():
        if entry.suffix == ".py" or (entry / "__init__.py").is_file():
            yield entry.stem
        elif entry.is_dir() and not entry.suffix:
            yield from (f"{entry.name}.{part}" for part in modules_in(entry))


def is_there(module: str) -> bool:
    """Whether this interpreter finds `module`."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that would hold it is missing
        return False


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


def required(start: Sequence[str] = START, without: Sequence[str] = (*OWN, *UNUSED)) -> dict[str, Distribution]:
    """The distributions of `start` and all that they require here, by name, but for those of `without`."""
    from packaging.requirements import Requirement  # pytest brings it

    found: dict[str, Distribution] = {}
    asked = list(start)
    while asked:
        name = asked.pop().lower().replace("_", "-")
        if name in found or name in without:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # an optional one
            continue
        needs = map(Requirement, found[name].requires or ())
        asked += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found
