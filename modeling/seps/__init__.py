"""SEPS (ICLR 2026): image-text matching with patches slimmed for every caption, paper and open version (spec 12)."""
from demo_sdtps.modeling.sdtps import TokenAggregation, TokenSparse
from demo_sdtps.modeling.seps.aggregation import DualTokenAggregation
from demo_sdtps.modeling.seps.losses import ContrastiveLoss, RatioLoss, SEPSLoss
from demo_sdtps.modeling.seps.network import SDTPS, CrossSparseAggrNet, create_seps_model
from demo_sdtps.modeling.seps.relevance import HRPA, mask_xattn_one_text

__all__ = ["HRPA", "SDTPS", "ContrastiveLoss", "CrossSparseAggrNet", "DualTokenAggregation", "RatioLoss", "SEPSLoss",
           "TokenAggregation", "TokenSparse", "create_seps_model", "mask_xattn_one_text"]
