"""Foreground masks beside the images of a triplet (docs/data.md)."""
from collections.abc import Sequence
from pathlib import Path

import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.scores import MASK
from demo_sdtps.datasets.base import Sample
from demo_sdtps.datasets.images import Images, Paths, decode, decode_triplet

ADVICE = ("; MODEL.SLIM_SCORE needs it as a foreground mask: write it anew with tools/make_masks.py, or choose a score without "
          "masks.")


def mask_path(sample: Sample) -> Path:
    """File of a triplet's mask: in MASK/ beside the folders of three images, or beside one image that holds all three."""
    image = Path(sample.files[0])
    folder = image.parent.parent if len(sample.paths) == len(MODALITIES) else image.parent
    return folder / MASK / f"{image.stem}.png"


def existing_masks(cfg: CfgNode, samples: Sequence[Sample]) -> list[str]:
    """Files of the masks of all samples. Raises `UserError` for the first that is missing."""
    paths = [mask_path(sample) for sample in samples]
    absent = next((path for path in paths if not path.is_file()), None)
    if absent:
        what = f"mask {absent}" if absent.parent.is_dir() else f"folder {absent.parent}"
        raise UserError(f"MODEL.SLIM_SCORE {cfg.MODEL.SLIM_SCORE!r} needs foreground masks, but the {what} is missing; write "
                        "the masks with tools/make_masks.py, or choose a score without masks.")
    return list(map(str, paths))


def decode_mask(path: str) -> torch.Tensor:
    """Mask as uint8 (1, H, W), 255 for the foreground. Raises `UserError` for a file that cannot be read."""
    return decode(path, ADVICE)[:1].contiguous()


def decode_masked_triplet(paths: Paths, modalities: Sequence[str] = MODALITIES) -> Images:
    """`decode_triplet`, and the mask (1, h, w), whose file is the last path. Raises `UserError`."""
    *images, mask = paths
    assert mask
    return *decode_triplet(tuple(images), modalities), decode_mask(mask)
