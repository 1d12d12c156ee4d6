"""Token pruning between the blocks of a backbone: of this project's model, and of any Vision Transformer (slim.py)."""
