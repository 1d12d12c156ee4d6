"""Small models and inputs, quick enough for a CPU."""
from functools import lru_cache
from pathlib import Path

import torch

from demo_sdtps.config import MODALITIES, load_cfg
from demo_sdtps.modeling import make_model

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "Synthetic" / "DeMo_SDTPS.yml"
CLIP_CONFIG = ROOT / "configs" / "RGBNT201" / "Baseline.yml"

SIZE = (64, 32)
WIDTH = 64
PATCHES = 32
"""Of 8×8 pixels. SDTPS keeps 16 of them and aggregates those to 6."""
CLASSES, CAMERAS = 5, 4
GIVEN_MAP = ("MODEL.SLIM_MAP", "[[0, 1, 0], [3, 5, 2]]")  # for the score of that name alone
UNSIZED = ("INPUT.SIZE_TRAIN", "INPUT.SIZE_TEST")


def tiny_cfg(*opts):
    """The synthetic configuration on images of SIZE; `opts` are KEY, VALUE, …"""
    opts = [str(value) for value in opts]
    sizes = [part for key in UNSIZED if key not in opts for part in (key, str(list(SIZE)))]
    return load_cfg(CONFIG, [*sizes, *GIVEN_MAP, *opts])


def tiny_model(*opts, seed=0, cameras=CAMERAS):
    """A randomly initialised model of `tiny_cfg`; the same seed and options give the same weights."""
    torch.manual_seed(seed)
    return make_model(tiny_cfg(*opts), CLASSES, cameras)


@lru_cache(maxsize=1)
def clip_model():
    """The model with CLIP's backbone and PIFE, built once; whoever changes it puts it back."""
    torch.manual_seed(0)
    return make_model(load_cfg(CLIP_CONFIG), CLASSES, CAMERAS)


def random_images(seed, batch=4, size=SIZE):
    """Random triplets {modality: (B, 3, H, W)} and their cameras (B,)."""
    generator = torch.Generator().manual_seed(seed)
    images = {modality: torch.randn(batch, 3, *size, generator=generator) for modality in MODALITIES}
    return images, torch.arange(batch) % CAMERAS
