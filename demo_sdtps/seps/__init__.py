"""SEPS (ICLR 2026): image-text matching with patches selected for each pair of image and caption.

Model (paper version and published version), losses, towers, data, training, evaluation and configuration keys; the commands are
demo-sdtps seps train and seps test.
"""

from demo_sdtps.lazy import lazy_names

NAMES = {
    "modeling.sdtps": ["TokenAggregation", "TokenSparse"],
    "seps.losses": ["ContrastiveLoss", "RatioLoss", "SEPSLoss"],
    "seps.network": ["SDTPS", "CrossSparseAggrNet", "DualTokenAggregation", "create_seps_model"],
    "seps.relevance": ["HRPA", "mask_xattn_one_text"],
}
__all__ = [name for names in NAMES.values() for name in names]
__getattr__, __dir__ = lazy_names(__name__, NAMES)
