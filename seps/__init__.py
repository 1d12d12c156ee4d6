"""SEPS (ICLR 2026): image-text matching with patches selected for each pair of image and caption.

The model is there as in the paper and as published; the commands are python -m seps train, test and check.
"""

from demo_sdtps.runtime.errors import UserError
from seps.network import (
    HRPA,
    SDTPS,
    ContrastiveLoss,
    CrossSparseAggrNet,
    RatioLoss,
    SEPSLoss,
    create_seps_model,
    mask_xattn_one_text,
)

__all__ = [
    "HRPA",
    "SDTPS",
    "ContrastiveLoss",
    "CrossSparseAggrNet",
    "RatioLoss",
    "SEPSLoss",
    "UserError",
    "create_seps_model",
    "mask_xattn_one_text",
]
