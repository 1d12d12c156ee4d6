"""Write foreground masks beside the images of a data set: python tools/make_masks.py --config_file F --weight hub"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from PIL import Image
from torchvision.transforms.v2.functional import resize

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.cli import add_overwrite, config_parser, parse, print_lines, run
from demo_sdtps.config.scores import MASK
from demo_sdtps.datasets import SPLITS, Sample, read_splits
from demo_sdtps.datasets.images import decode_triplet
from demo_sdtps.datasets.masks import mask_path
from demo_sdtps.modeling.segmenters import CLASSES, Segmenter, make_segmenter
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress


def main() -> None:
    parser = config_parser(f"Segment the images of a data set and write a foreground mask for each triplet into its {MASK}/ "
                           "folder, where MODEL.SLIM_SCORE looks for them (docs/data.md).")
    parser.add_argument("--split", choices=SPLITS, action="append", help="may be repeated (default: all three)")
    parser.add_argument("--model", default="maskrcnn", metavar="NAME",
                        help="maskrcnn, whose largest instance is the mask; deeplab; or module:function, a function from a "
                             "uint8 (3, H, W) tensor to a mask (H, W) in [0, 1] (default: maskrcnn)")
    parser.add_argument("--weight", metavar="W", help="file of torchvision's weights for that network, or hub to download it")
    parser.add_argument("--classes", choices=CLASSES, default="person", help="the foreground (default: person)")
    parser.add_argument("--modality", choices=(*MODALITIES, "all"), default="RGB",
                        help="the image that is segmented; all: each of the three, united (default: RGB)")
    add_overwrite(parser, "replace masks that exist, which are otherwise kept")
    arguments, cfg = parse(parser)
    samples = [sample for split in read_splits(cfg, arguments.split or SPLITS).values() for sample in split]
    segment = make_segmenter(arguments.model, arguments.weight, arguments.classes, choose_device(cfg))
    modalities = MODALITIES if arguments.modality == "all" else (arguments.modality,)
    counts = write_masks(samples, segment, modalities, arguments.overwrite)
    empty = f", {counts['empty']} of them without any foreground" if counts["empty"] else ""
    print_lines(f"Wrote {counts['written']} masks{empty} and kept {counts['kept']} for {cfg.DATASETS.NAMES} in "
                f"{cfg.DATASETS.ROOT_DIR}, such as {mask_path(samples[0])}")


def write_masks(samples: Iterable[Sample], segment: Segmenter, modalities: Sequence[str], overwrite: bool) -> Counter:
    """Write the masks of the triplets → numbers of masks "written", "empty" among them, and "kept". Raises `UserError`.

    Masks are 8-bit grey PNG files, 255 for the foreground.
    """
    counts: Counter = Counter()
    files = {mask_path(sample): sample for sample in samples}  # once where query and gallery are the same
    wanted = {path: sample for path, sample in files.items() if overwrite or not path.exists()}
    counts["kept"] = len(files) - len(wanted)
    for path, sample in progress(wanted.items(), "segmenting", len(wanted), unit="triplet"):
        shown = [image for image in decode_triplet(sample.paths, modalities) if image is not None]
        if not shown:
            raise UserError(f"{sample.files[0]} has no image of {' and '.join(modalities)}; choose another --modality.")
        mask = united([segment(image) for image in shown])
        counts.update(written=1, empty=int(not mask.any()))
        with atomic_write(path) as temporary:
            Image.fromarray(mask.numpy()).save(temporary, format="PNG")
    return counts


def united(masks: list[torch.Tensor]) -> torch.Tensor:
    """Masks (h, w) in [0, 1] → the maximum at each place, uint8 (H, W) from 0 to 255, in the size of the first."""
    size = list(masks[0].shape)
    resized = torch.stack([resize(mask[None], size)[0] for mask in masks])
    return (resized.amax(dim=0) * 255).round().byte()


if __name__ == "__main__":
    run(main)
