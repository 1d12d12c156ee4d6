"""Data sets that are drawn: pedestrians and vehicles in three modalities, and shapes with captions (`python -m synthetic`)."""

from pathlib import Path
from typing import Any

import yaml


def read_tables(name: str) -> dict[str, Any]:
    """The tables of NAME.yml in this folder: colours, looks and materials."""
    path = Path(__file__).with_name(f"{name}.yml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))
