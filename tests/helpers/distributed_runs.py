"""What runs of one and of two processes have in common."""

from tiny import MODEL

STILL = ("MODEL.DROP_PATH", "0.0", "SOLVER.AMP", "off")
"""Without what every process draws for itself, and in float32 on any processor."""


def roundings(steps):
    """Lengths of the sums in as many steps of training, forward and backward, of both that are compared."""
    return 2 * 2 * steps * MODEL
