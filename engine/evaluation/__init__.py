"""Evaluation: feature extraction, metrics, re-ranking, image-text retrieval, reports."""
