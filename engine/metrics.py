"""Stable names of engine/evaluation/metrics.py."""
from demo_sdtps.engine.evaluation.metrics import Ranking, evaluate_distances, evaluate_ranking, squared_distances

__all__ = ["Ranking", "evaluate_distances", "evaluate_ranking", "squared_distances"]
