"""Write synthetic triplets in the layout of RGBNT201, with masks: python tools/make_synthetic.py --root data/synthetic"""

import os
from pathlib import Path

from demo_sdtps.config.cli import print_lines
from demo_sdtps.synthetic import pedestrians
from demo_sdtps.synthetic.folder import Number, Recipe, make_data_set, parse_flags
from demo_sdtps.synthetic.pedestrians import CAMERAS, FOLDER, MINIMUM_SIZE

TRIPLET_FLAGS = (
    Number("identities", 100, "persons of the training split"),
    Number("test_identities", 40, "other persons, of the test split"),
    # the running number in the names of files has two digits
    Number("images_per_camera", 3, "triplets of each person and camera, at most 100", most=100),
    Number("height", 128, "height of the images", MINIMUM_SIZE[0], metavar="PIXELS"),
    Number("width", 64, "width of the images", MINIMUM_SIZE[1], metavar="PIXELS"),
    Number("seed", 0, "another seed gives other persons and images", least=0),
    Number("quality", 92, "JPEG quality, 1 to 100", most=100),
)
LOOSE = (
    "unaligned crops: the person stands anywhere in the picture, at half to full height, as detectors give them; "
    "identities, cameras, light and surroundings are those of the same seed without this flag"
)
SKIP = Number("skip_identities", 0, "leave out the first N persons of the seed", least=0)
WORKERS = Number("workers", os.cpu_count() or 1, "processes, which do not change the images")


def main(arguments: list[str] | None = None) -> None:
    options = parse_flags(
        arguments,
        "Write synthetic pedestrians (RGB, near infrared, thermal infrared) in the layout of RGBNT201, with foreground masks.",
        FOLDER,
        (*TRIPLET_FLAGS, SKIP, WORKERS),
        loose=LOOSE,
    )
    target = options.root / FOLDER
    numbers = {number.name: getattr(options, number.name) for number in TRIPLET_FLAGS}
    settings = {"loose": options.loose, SKIP.name: options.skip_identities}
    changed = {name: value for name, value in settings.items() if value}
    recipe = {"version": pedestrians.VERSION, "arguments": numbers | changed}

    def fill(folder: Path) -> Recipe:
        drawing = {"unaligned": options.loose, "workers": options.workers}
        drawing["skip_identities"] = options.skip_identities
        return {"triplets": pedestrians.write_data_set(folder, **numbers, **drawing)}

    if not make_data_set(target, recipe, options.overwrite, fill):
        return
    per_identity = len(CAMERAS) * options.images_per_camera
    print_lines(
        f"Wrote {options.identities * per_identity} training triplets of {options.identities} identities and "
        f"{options.test_identities * per_identity} test triplets of {options.test_identities} others, "
        f"{options.height}x{options.width} pixels (height x width), with masks, to {target}",
        f"To train on it, give DATASETS.NAMES Synthetic DATASETS.ROOT_DIR {options.root}",
    )
