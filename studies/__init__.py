"""Studies: what tools/study.py runs, and scores that are only measured there."""
