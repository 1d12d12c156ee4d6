"""Measurements of speed and memory relative to the reference formulations of tests/reference."""
