"""SEPS (ICLR 2026): image-text matching with patches selected for each pair of image and caption.

Model (paper version and published version), losses, towers, data, training, evaluation and configuration keys; the commands are
python -m seps train, test and check.
"""

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
    "create_seps_model",
    "mask_xattn_one_text",
]
