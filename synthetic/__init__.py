"""Synthetic data sets: pedestrians and vehicles in three modalities, and shapes with captions."""
