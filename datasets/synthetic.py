"""Synthetic pedestrians of tools/make_synthetic.py, in the layout of RGBNT201 but a folder of their own."""
import re
from pathlib import Path

from demo_sdtps.datasets import rgbnt201
from demo_sdtps.datasets.base import Reader, Sample

FOLDER = "synthetic"
MARKER = "synthetic.json"  # file that tools/make_synthetic.py writes into its data sets


def locate(root: Path) -> Path:
    """ROOT_DIR/synthetic, or ROOT_DIR itself where its RGBNT201 is synthetic, as in configs/Synthetic."""
    return root if (root / rgbnt201.READER.folder / MARKER).is_file() else root / FOLDER


def light(sample: Sample) -> str:
    """"day" or "night", which the file names of tools/make_synthetic.py tell; "" for an image of another data set."""
    path = Path(sample.paths[0])
    match = re.fullmatch(r"\d+_cam\d_([01])_\d+", path.stem)
    return ("day", "night")[int(match[1])] if match and (path.parents[2] / MARKER).is_file() else ""


def read(root: Path, split: str) -> list[Sample]:
    return rgbnt201.read(locate(root), split)


READER = Reader(read, layout=f"{FOLDER}/{rgbnt201.READER.layout}", instead=", or run `make demo`, which makes it",
                trained_as=("RGBNT201",), locate=locate)
