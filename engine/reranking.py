"""Stable name of engine/evaluation/reranking.py."""
from demo_sdtps.engine.evaluation.reranking import k_reciprocal

__all__ = ["k_reciprocal"]
