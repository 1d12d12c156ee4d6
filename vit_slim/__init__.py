"""Token pruning of any Vision Transformer, on torch alone (docs/slim.md)."""

from vit_slim.slim import slim, slim_loss, unslim

__all__ = ["slim", "slim_loss", "unslim"]
