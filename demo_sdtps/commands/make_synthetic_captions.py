"""Write synthetic images with captions and a tiny text tower: demo-sdtps synthetic captions --root data"""

from functools import partial

from demo_sdtps.config import cli
from demo_sdtps.runtime.errors import check_extra
from demo_sdtps.synthetic import captions, shapes
from demo_sdtps.synthetic.folder import Number, make_data_set, parse_flags

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


def main(arguments: list[str] | None = None) -> None:
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
