"""Hides an editable installation of the project from a process that has this folder in PYTHONPATH."""
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable___demo_sdtps" not in getattr(finder, "__module__", "")]
