"""Figures and pages of runs and searches."""
