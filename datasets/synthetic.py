"""Synthetic pedestrians of tools/make_synthetic.py, in the layout of RGBNT201 but a folder of their own."""
from pathlib import Path

from demo_sdtps.datasets import rgbnt201
from demo_sdtps.datasets.base import Reader, Sample

FOLDER = "synthetic"
MARKER = "synthetic.json"  # file that tools/make_synthetic.py writes into its data sets


def locate(root: Path) -> Path:
    """ROOT_DIR/synthetic, or ROOT_DIR itself where its RGBNT201 is synthetic, as in configs/Synthetic."""
    return root if (root / rgbnt201.READER.folder / MARKER).is_file() else root / FOLDER


def read(root: Path, split: str) -> list[Sample]:
    return rgbnt201.read(locate(root), split)


READER = Reader(read, layout=f"{FOLDER}/{rgbnt201.READER.layout}", instead=", or run `make demo`, which makes it",
                trained_as=("RGBNT201",), locate=locate)
