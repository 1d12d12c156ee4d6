"""RGBNT201: persons, four cameras, three folders of pictures with the same names (spec 8)."""
import re
from pathlib import Path

from config import MODALITIES, UserError
from datasets.base import Reader, Sample, triplet_paths

FOLDERS = {"train": "train_171", "query": "test", "gallery": "test"}
NAME = re.compile(r"(?P<identity>\d{6})_cam(?P<camera>\d).*\.jpg")
EXAMPLE = "000001_cam1_0_00.jpg"


def read(root: Path, split: str) -> list[Sample]:
    """The samples of a split; query and gallery are both all of `test`. Raises `UserError`."""
    samples = []
    for paths in triplet_paths(root / "RGBNT201" / FOLDERS[split], {modality: modality for modality in MODALITIES}):
        match = NAME.fullmatch(Path(paths[0]).name)
        if not match or match["camera"] == "0":
            raise UserError(f"The picture {paths[0]} does not follow RGBNT201's names such as {EXAMPLE} (identity in six "
                            "digits, camera from 1); rename or remove it.")
        samples.append(Sample(paths, int(match["identity"]), int(match["camera"]) - 1))
    return samples


READER = Reader(read, layout="RGBNT201/{train_171,test}/{RGB,NI,TI}/" + EXAMPLE)
