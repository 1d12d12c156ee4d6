"""SEPS (ICLR 2026): image-text matching with patches selected for each pair of image and caption.

Model (paper version and published version), losses, towers, data, training, evaluation and configuration keys; the commands are
demo-sdtps seps train and demo-sdtps seps test.
"""

from typing import TYPE_CHECKING

from demo_sdtps.lazy import lazy_names

if TYPE_CHECKING:
    from demo_sdtps.modeling.sdtps import TokenAggregation, TokenSparse
    from demo_sdtps.seps.losses import ContrastiveLoss, RatioLoss, SEPSLoss
    from demo_sdtps.seps.network import (
        SDTPS,
        CrossSparseAggrNet,
        DualTokenAggregation,
        create_seps_model,
    )
    from demo_sdtps.seps.relevance import HRPA, mask_xattn_one_text

__all__ = [
    "HRPA",
    "SDTPS",
    "ContrastiveLoss",
    "CrossSparseAggrNet",
    "DualTokenAggregation",
    "RatioLoss",
    "SEPSLoss",
    "TokenAggregation",
    "TokenSparse",
    "create_seps_model",
    "mask_xattn_one_text",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "modeling.sdtps": ["TokenAggregation", "TokenSparse"],
        "seps.losses": ["ContrastiveLoss", "RatioLoss", "SEPSLoss"],
        "seps.network": [
            "SDTPS",
            "CrossSparseAggrNet",
            "DualTokenAggregation",
            "create_seps_model",
        ],
        "seps.relevance": ["HRPA", "mask_xattn_one_text"],
    },
)
