"""Data sets that are drawn: demo-sdtps synthetic --root data/synthetic, and synthetic captions --root data"""

import os
from functools import partial
from pathlib import Path

from demo_sdtps.config import cli
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.synthetic import captions, pedestrians, shapes, vehicles
from demo_sdtps.synthetic.cameras import CAMERAS
from demo_sdtps.synthetic.folder import Number, Recipe, make_data_set, parse_flags
from demo_sdtps.synthetic.triplets import FOLDER, MINIMUM_SIZE, write_data_set

TRIPLET_FLAGS = (
    Number("identities", 100, "persons or vehicles of the training split"),
    Number("test_identities", 40, "other ones, of the test split"),
    # the running number in the names of files has two digits
    Number("images_per_camera", 3, "triplets of each of them and camera, at most 100", most=100),
    Number("height", None, "of images (128; vehicles: 64)", MINIMUM_SIZE[0], metavar="PIXELS"),
    Number("width", None, "of images (64; vehicles: 128)", MINIMUM_SIZE[1], metavar="PIXELS"),
    Number("seed", 0, "another seed gives other identities and images", least=0),
    Number("quality", 92, "JPEG quality, 1 to 100", most=100),
)
SWITCHES = {
    "vehicles": "vehicles in place of pedestrians; they fill the picture, whose borders cut them",
    "loose": "unaligned crops: the object is anywhere in the picture, at half to full height, as detectors give them; "
    "identities, cameras, light and surroundings are those of the same seed without this flag",
}
SKIP = Number("skip_identities", 0, "leave out the first N identities of the seed", least=0)
WORKERS = Number("workers", os.cpu_count() or 1, "processes, which do not change the images")
SHAPES = "shapes"
CAPTION_FLAGS = (
    # Matching needs at least one other image.
    Number("images", 800, "images of the training split", least=2),
    Number("dev_images", 100, "other images, of the dev split", least=2),
    Number("test_images", 200, "other images, of the test split", least=2),
    # A scene of two shapes has few more.
    Number("captions", 5, "short captions of each image, at most 20", most=20),
    Number("size", 64, "height and width of the images", shapes.MINIMUM_SIDE, metavar="PIXELS"),
    Number("seed", 0, "another seed gives other images and captions", least=0),
)


def triplets(arguments: list[str] | None = None) -> None:
    options = parse_flags(
        arguments,
        "Write synthetic pedestrians, or vehicles, in RGB, near and thermal infrared, in the layout of RGBNT201, with masks.",
        FOLDER,
        (*TRIPLET_FLAGS, SKIP, WORKERS),
        **SWITCHES,
    )
    target = options.root / FOLDER
    kind = vehicles if options.vehicles else pedestrians
    values = dict(zip(("height", "width"), kind.SIZE, strict=True)) | vars(options)
    numbers = {number.name: values[number.name] for number in TRIPLET_FLAGS}
    changed = {name: values[name] for name in (*SWITCHES, SKIP.name) if values[name]}
    recipe = {"version": kind.VERSION, "arguments": numbers | changed}

    def fill(folder: Path) -> Recipe:
        drawing = {"unaligned": options.loose, "workers": options.workers}
        drawing["skip_identities"] = options.skip_identities
        return {"triplets": write_data_set(folder, kind, **numbers, **drawing)}

    if not make_data_set(target, recipe, options.overwrite, fill):
        return
    per_identity = len(CAMERAS) * options.images_per_camera
    cli.print_lines(
        f"Wrote {options.identities * per_identity} training triplets of {options.identities} identities and "
        f"{options.test_identities * per_identity} test triplets of {options.test_identities} others, "
        f"{numbers['height']}x{numbers['width']} pixels (height x width), with masks, to {target}",
        f"To train on it, give DATASETS.NAMES Synthetic DATASETS.ROOT_DIR {options.root}",
    )


def captioned(arguments: list[str] | None = None) -> None:
    options = parse_flags(
        arguments,
        "Write images of coloured shapes with short and long captions, in the layout of image-text data sets, and a tiny BERT "
        "with random weights and their vocabulary.",
        SHAPES,
        CAPTION_FLAGS,
    )
    check_extra("The text tower", "seps", {"transformers": "transformers"})
    target = options.root / SHAPES
    recipe = {
        "version": shapes.SHAPES_VERSION,
        "tower": captions.BERT,
        "arguments": {number.name: getattr(options, number.name) for number in CAPTION_FLAGS},
    }
    write = partial(captions.write_captioned, options=options)
    if not make_data_set(target, recipe, options.overwrite, write):
        return
    cli.print_lines(
        f"Wrote {options.images} training, {options.dev_images} dev and {options.test_images} test images of "
        f"{options.size}x{options.size} pixels, {options.captions} captions and a long one each, and a text tower, to "
        f"{target}",
        f"To train on it, give DATASETS.ROOT_DIR {options.root} DATASETS.NAMES {SHAPES} MODEL.TEXT_TOWER "
        f"{target / captions.TEXT_TOWER}",
    )
