"""Synthetic data sets: pedestrians in three modalities, and shapes with captions."""
