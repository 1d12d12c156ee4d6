"""Foreground masks beside the images of a triplet (docs/train.md)."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from torchvision.transforms.v2.functional import resize
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.check import MASK
from demo_sdtps.datasets.base import Sample
from demo_sdtps.datasets.images import Images, Paths, decode
from demo_sdtps.runtime.files import atomic_write
from demo_sdtps.runtime.progress import progress

MASK_ADVICE = (
    "; MODEL.SLIM_SCORE needs it as a foreground mask: write it anew with demo-sdtps masks, or choose a score without "
    "masks."
)


def mask_path(sample: Sample) -> Path:
    """File of a triplet's mask: in MASK/ beside the folders of three images, or beside one image that holds all three."""
    image = Path(sample.files[0])
    folder = image.parent.parent if len(sample.paths) == len(MODALITIES) else image.parent
    return folder / MASK / f"{image.stem}.png"


def mask_paths(samples: Sequence[Sample]) -> list[Path]:
    """Files of the triplets' masks, one for each image."""
    paths = [mask_path(sample) for sample in samples]
    image_of: dict[Path, str] = {}
    for path, sample in zip(paths, samples, strict=True):
        if (other := image_of.setdefault(path, sample.files[0])) != sample.files[0]:
            raise UserError(
                f"The images {other} and {sample.files[0]} would have one mask, {path}; rename one of the triplets."
            )
    return paths


def existing_masks(cfg: CfgNode, samples: Sequence[Sample]) -> list[str]:
    """Files of the masks of all samples."""
    paths = mask_paths(samples)
    absent = next((path for path in paths if not path.is_file()), None)
    if absent:
        what = f"mask {absent}" if absent.parent.is_dir() else f"folder {absent.parent}"
        raise UserError(
            f"MODEL.SLIM_SCORE {cfg.MODEL.SLIM_SCORE!r} needs foreground masks, but the {what} is missing; write "
            "the masks with demo-sdtps masks, or choose a score without masks."
        )
    return list(map(str, paths))


def decode_mask(path: str) -> torch.Tensor:
    """Mask as uint8 (1, H, W), 255 for the foreground."""
    return decode(path, MASK_ADVICE, scale=None)[:1].contiguous()


def write_masks(
    samples: Sequence[Sample],
    segment: Callable[[torch.Tensor], torch.Tensor],
    decoder: Callable[[Paths], Images],
    overwrite: bool,
) -> Counter:
    """Write the masks of the triplets → numbers of masks "written", "empty" among them, and "kept". `segment` makes a mask (H,
    W) in [0, 1] of an image uint8 (3, H, W), of those that `decoder` reads of a triplet. Masks are PNG files, 255 inside."""
    counts: Counter = Counter()
    # once where query and gallery are the same
    files = dict(zip(mask_paths(samples), samples, strict=True))
    missing = {path: sample for path, sample in files.items() if overwrite or not path.exists()}
    counts["kept"] = len(files) - len(missing)
    for path, sample in progress(missing.items(), "segmenting", len(missing), unit="triplet"):
        shown = [image for image in decoder(sample.paths) if image is not None]
        if not shown:
            raise UserError(
                f"{sample.files[0]} has no image of the modality to segment; choose another --modality."
            )
        masks = [segment(image) for image in shown]
        # the maximum at each place, in the size of the first
        sized = [resize(mask[None], list(masks[0].shape))[0] for mask in masks]
        mask = (torch.stack(sized).amax(dim=0) * 255).round().byte()
        counts.update(written=1, empty=int(not mask.any()))
        with atomic_write(path) as temporary:
            Image.fromarray(mask.numpy()).save(temporary, format="PNG")
    return counts
