"""SEPS (ICLR 2026): image-text matching with patches slimmed for every caption, paper and open version (spec 12)."""
from modeling.sdtps import TokenAggregation, TokenSparse
from modeling.seps.aggregation import DualTokenAggregation
from modeling.seps.losses import ContrastiveLoss, RatioLoss, SEPSLoss
from modeling.seps.network import SDTPS, CrossSparseAggrNet, create_seps_model
from modeling.seps.relevance import HRPA, mask_xattn_one_text

__all__ = ["HRPA", "SDTPS", "ContrastiveLoss", "CrossSparseAggrNet", "DualTokenAggregation", "RatioLoss", "SEPSLoss",
           "TokenAggregation", "TokenSparse", "create_seps_model", "mask_xattn_one_text"]
