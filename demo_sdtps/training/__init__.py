"""Training: the loop, its output folder, checkpoints and exact resume."""
