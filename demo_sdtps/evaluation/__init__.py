"""Evaluation: features, mAP and CMC, re-ranking, analysis."""
