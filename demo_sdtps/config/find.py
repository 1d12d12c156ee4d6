"""Configurations by their names, with or without the folder and the ending .yml."""

from collections.abc import Collection
from pathlib import Path

from demo_sdtps.config.schema import Schema
from demo_sdtps.runtime.errors import UserError, nearest_name

PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = next(
    (path for path in (PACKAGE / "configs", PACKAGE.parent / "configs") if path.is_dir()), PACKAGE
)
"""The published configurations: in an installed package inside it, in a checkout beside it."""
OWN = "Own"
"""The folder in it for own data."""
ENDINGS = ("", ".yml", ".yaml")


def config_path(path: Path) -> Path:
    """`path`, or where it does not exist, that of the package: RGBNT201/DeMo_SDTPS, with or without configs/ and .yml."""
    folders = (Path(), CONFIGS, CONFIGS.parent)
    candidates = (folder / f"{path}{ending}" for ending in ENDINGS for folder in folders)
    return next((candidate for candidate in candidates if candidate.is_file()), path)


def published() -> dict[str, Path]:
    """The published configurations by name, such as RGBNT201/DeMo."""
    paths = sorted(CONFIGS.glob("*/*.yml"))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in paths}


def config_names() -> list[str]:
    """Names of the published configurations, with and without their folders."""
    return sorted({*published(), *(path.stem for path in published().values())})


def is_key(word: str, schema: Schema) -> bool:
    """Whether the first word after a command is a key, with its value or without, and not the name of a configuration."""
    return "=" in word or word in schema.by_name or Path(word).suffix not in ENDINGS


def find_config(name: str, data: str | None, kinds: Collection[str], schema: Schema) -> Path:
    """The file of a configuration. A name without a folder that several folders have is that of the data: `kinds` are the
    names of the folders for what `data` holds."""
    if (path := config_path(Path(name))).is_file():
        return path
    same = {key: path for key, path in published().items() if name in (path.stem, path.name)}
    if not same:
        known = [*config_names(), *schema.by_name]
        raise UserError(
            f"There is no configuration {name!r}{nearest_name(name, known)}; give another name or a YAML file."
        )
    fitting = [key for key, path in same.items() if path.parent.name in kinds]
    if len(chosen := fitting or [*same]) == 1:
        return same[chosen[0]]
    why = f"{data} has the data of {' and '.join(fitting) or 'none of them'}" if data else ""
    raise UserError(
        f"The name {name} is that of several configurations: {', '.join(same)}; "
        f"{why or 'give --data the folder of the data'}, or write one of these names."
    )
