"""Weights: checkpoints of runs, pretrained backbones, and the names of the weights in DeMo."""
