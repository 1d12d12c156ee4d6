"""Synthetic: the pedestrians that tools/make_synthetic.py draws, in RGBNT201's layout and names but a folder of their own."""
from pathlib import Path

from demo_sdtps.datasets import rgbnt201
from demo_sdtps.datasets.base import Reader, Sample

FOLDER = "synthetic"
MARKER = "synthetic.json"
"""The file by which the tool knows what it has drawn."""


def place(root: Path) -> Path:
    """ROOT_DIR/synthetic, or ROOT_DIR itself where its RGBNT201 is drawn, as configs/Synthetic names it."""
    return root if (root / rgbnt201.READER.folder / MARKER).is_file() else root / FOLDER


def read(root: Path, split: str) -> list[Sample]:
    """The samples of a split. Raises `UserError`."""
    return rgbnt201.read(place(root), split)


READER = Reader(read, layout=f"{FOLDER}/{rgbnt201.READER.layout}", instead=", or run `make demo`, which makes it",
                trained_as=("RGBNT201",), place=place)
