"""Write foreground masks beside the images of a data set: demo-sdtps masks --config_file F --weight hub"""

from demo_sdtps.commands import flags
from demo_sdtps.config import MODALITIES, cli, with_values
from demo_sdtps.config.check import MASK
from demo_sdtps.config.common import FOREGROUND
from demo_sdtps.datasets import SPLITS, read_splits


def main() -> None:
    parser = flags.config_parser(
        f"Segment the images of a data set and write a foreground mask for each triplet into its {MASK}/ "
        "folder, where MODEL.SLIM_SCORE looks for them (docs/train.md).",
        weight="",
    )
    which = "may be repeated (default: all three)"
    parser.add_argument("--split", choices=SPLITS, action="append", help=which)
    models = (
        "maskrcnn, whose largest instance is the mask; or module:function, a function from a uint8 (3, H, W) tensor to a "
        "mask (H, W) in [0, 1] (default: maskrcnn)"
    )
    parser.add_argument("--model", default="maskrcnn", metavar="NAME", help=models)
    parser.add_argument("--weight", metavar="W", help="torchvision's weights: a file, or hub")
    cli.add_choice(parser, "--classes", FOREGROUND, "person", "the foreground")
    segmented = "the image that is segmented; all: each of the three, united"
    cli.add_choice(parser, "--modality", (*MODALITIES, "all"), "RGB", segmented)
    cli.add_overwrite(parser, "replace masks that exist, which are otherwise kept")
    arguments, cfg = flags.parse(parser)
    from demo_sdtps.commands.segmenters import make_segmenter
    from demo_sdtps.datasets.loaders import make_decoder
    from demo_sdtps.datasets.masks import mask_path, write_masks
    from demo_sdtps.runtime.device import choose_device

    splits = read_splits(cfg, arguments.split or SPLITS)
    samples = [sample for split in splits.values() for sample in split]
    device = choose_device(cfg)
    segment = make_segmenter(arguments.model, arguments.weight, arguments.classes, device)
    modalities = MODALITIES if arguments.modality == "all" else (arguments.modality,)
    decoder = make_decoder(with_values(cfg, {"MODEL.MODALITIES": list(modalities)}))
    counts = write_masks(samples, segment, decoder, arguments.overwrite)
    empty = f", {counts['empty']} of them without any foreground" if counts["empty"] else ""
    cli.print_lines(
        f"Wrote {cli.count_text(counts['written'], 'mask')}{empty} and kept {counts['kept']} for {cfg.DATASETS.NAMES} in "
        f"{cfg.DATASETS.ROOT_DIR}, such as {mask_path(samples[0])}"
    )
