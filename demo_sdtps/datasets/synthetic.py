"""Synthetic pedestrians of demo-sdtps synthetic, in the layout of RGBNT201 but a folder of their own."""

import re
from pathlib import Path

from demo_sdtps.datasets import rgbnt201
from demo_sdtps.datasets.base import Reader, Sample
from demo_sdtps.runtime.files import has_form, read_json

FOLDER = "synthetic"
MARKER = "synthetic.json"  # file that demo-sdtps synthetic writes into its data sets

FORM = {
    "triplets": {"train_171": int, "test": int},
    "arguments": {"identities": int, "test_identities": int},
}


def locate(root: Path) -> Path:
    """ROOT_DIR/synthetic/RGBNT201, or ROOT_DIR/RGBNT201 where that is synthetic or ROOT_DIR ends in synthetic."""
    folder = root / "RGBNT201"
    is_synthetic = root.name == FOLDER or (folder / MARKER).is_file()
    return folder if is_synthetic else root / FOLDER / "RGBNT201"


def synthetic_counts(folder: Path) -> dict[str, dict[str, int]] | None:
    """The counts of the data set in a folder by split, as demo-sdtps synthetic has noted them; None for any other data."""
    marker = read_json(folder / MARKER, dict)
    if not has_form(marker, FORM):  # of vehicles or shapes
        return None
    triplets, arguments = marker["triplets"], marker["arguments"]
    train = {"triplets": triplets["train_171"], "identities": arguments["identities"]}
    test = {"triplets": triplets["test"], "identities": arguments["test_identities"]}
    return {"train": train, "query": test, "gallery": test}


def illumination(sample: Sample) -> str:
    """ "day" or "night", which the file names of demo-sdtps synthetic tell; "" for an image of another data set."""
    path = Path(sample.files[0])
    match = re.fullmatch(r"\d+_cam\d_([01])_\d+", path.stem)
    return ("day", "night")[int(match[1])] if match and (path.parents[2] / MARKER).is_file() else ""


READER = Reader(
    lambda root, split: rgbnt201.read(locate(root).parent, split),
    layout=f"[/{FOLDER}]{rgbnt201.READER.layout}",
    instead=", or run `make demo`, which makes it",
    trained_as=("RGBNT201",),
    locate=locate,
)
