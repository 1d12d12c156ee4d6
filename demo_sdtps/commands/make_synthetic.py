"""Write synthetic triplets in the layout of RGBNT201, with masks: python tools/make_synthetic.py --root data/synthetic"""

import os

from demo_sdtps.synthetic import pedestrians
from demo_sdtps.synthetic.folder import Number, make_data_set, parse_flags
from demo_sdtps.synthetic.pedestrians import CAMERAS, FOLDER, MINIMUM_SIZE

TRIPLET_FLAGS = (
    Number("identities", 100, "persons of the training split"),
    Number("test_identities", 40, "other persons, of the test split"),
    Number(
        "images_per_camera",
        3,
        f"triplets of each person from each of the {len(CAMERAS)} cameras, at most 100: the running "
        "number in the file names has two digits",
        most=100,
    ),
    Number("height", 128, "height of the images", MINIMUM_SIZE[0], metavar="PIXELS"),
    Number("width", 64, "width of the images", MINIMUM_SIZE[1], metavar="PIXELS"),
    Number("seed", 0, "another seed gives other persons and images", least=0),
    Number("quality", 92, "JPEG quality, 1 to 100", most=100),
)
LOOSE = (
    "unaligned crops: the person stands anywhere in the picture, at half to full height, as detectors give them; "
    "identities, cameras, light and surroundings are those of the same seed without this flag"
)
SKIP = Number(
    "skip_identities",
    0,
    "leave out the first N persons of the seed, such as those of another data set",
    least=0,
)
WORKERS = Number(
    "workers", os.cpu_count() or 1, "processes that draw; their number does not change the images"
)


def main(arguments: list[str] | None = None) -> None:
    options = parse_flags(
        arguments,
        "Write synthetic pedestrians (RGB, near infrared, thermal infrared) in the layout of "
        "RGBNT201, with foreground masks.",
        FOLDER,
        (*TRIPLET_FLAGS, SKIP, WORKERS),
        loose=LOOSE,
    )
    target = options.root / FOLDER
    numbers = {number.name: getattr(options, number.name) for number in TRIPLET_FLAGS}
    settings = {
        name: value
        for name, value in (("loose", options.loose), (SKIP.name, options.skip_identities))
        if value
    }
    recipe = {"version": pedestrians.VERSION, "arguments": numbers | settings}
    if not make_data_set(
        target,
        recipe,
        options.overwrite,
        lambda folder: {
            "triplets": pedestrians.write_data_set(
                folder,
                **numbers,
                skip_identities=options.skip_identities,
                unaligned=options.loose,
                workers=options.workers,
            )
        },
    ):
        return
    per_identity = len(CAMERAS) * options.images_per_camera
    print(
        f"Wrote {options.identities * per_identity} training triplets of {options.identities} identities and "
        f"{options.test_identities * per_identity} test triplets of {options.test_identities} others, "
        f"{options.height}x{options.width} pixels (height x width), with masks, to {target}",
        f"To train on it, give DATASETS.ROOT_DIR {options.root}",
        sep="\n",
    )
