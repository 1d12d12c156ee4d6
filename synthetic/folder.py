"""What the tools that make synthetic data sets share: a folder that is known again, and is written whole or not at all."""
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo_sdtps.config import UserError
from demo_sdtps.datasets.synthetic import MARKER


def read_marker(target: Path) -> dict | None:
    """What a tool recorded when it made `target`; None if it was not made so."""
    try:
        marker = json.loads((target / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and "version" in marker else None


def marker_of(target: Path, recipe: dict) -> dict | None:
    """The marker of `target` if it was made by this recipe."""
    marker = read_marker(target)
    if marker is None or any(marker.get(key) != value for key, value in recipe.items()):
        return None
    return marker


def check_free(target: Path, overwrite: bool) -> None:
    """Raise UserError unless `target` is absent, empty, or an older work of the tool that may be replaced."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise UserError(f"{target} exists and is not a plain folder; choose another --root.")
    if not any(target.iterdir()):
        return
    made_here = read_marker(target) is not None
    if overwrite and not made_here:
        raise UserError(f"{target} is not empty and holds no {MARKER}, so this tool did not make it and it may be the "
                        f"real data set; --overwrite leaves it alone: choose another --root.")
    if not overwrite:
        raise UserError(f"{target} exists already and is not empty; choose another --root"
                        + (" or pass --overwrite to replace it." if made_here else "."))


@contextmanager
def written_folder(target: Path) -> Iterator[tuple[Path, dict]]:
    """A fresh folder beside `target` to fill, and its marker, a dict to fill; it takes `target`'s place when complete."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".synthetic-", dir=target.parent) as temporary:
            fresh, marker = Path(temporary) / target.name, {}
            fresh.mkdir()
            yield fresh, marker
            (fresh / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
            if target.exists():
                shutil.move(target, Path(temporary) / "replaced")
            fresh.rename(target)
    except OSError as error:
        raise UserError(f"--root {target.parent}: the data set could not be written there "
                        f"({error.strerror or error}); choose a folder that is writable and has room.") from error
