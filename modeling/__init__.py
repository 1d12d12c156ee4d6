"""What is computed: the trunk, PIFE, SDTPS, the heads, the losses, and weights in and out."""
from modeling.demo import DeMo, make_model

__all__ = ["DeMo", "make_model"]
