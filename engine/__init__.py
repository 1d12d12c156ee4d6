"""What is done with a model: training, evaluation, metrics and checkpoints."""
