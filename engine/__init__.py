"""Training, evaluation, checkpoints, and computing on several processes."""
