"""Figures, pages and tables of runs, searches and studies."""
