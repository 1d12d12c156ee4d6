"""Scores of patches that need no training, one image and one patch at a time (docs/method.md)."""


def distinctness(patches):
    """Scores of one image's patches (N, C): 1 - cosine with their mean."""
    mean = sum(patches) / len(patches)
    return [1 - patch @ mean / (patch @ patch * (mean @ mean)) ** 0.5 for patch in patches]


def mean_attention(attention):
    """Scores of one image's patches from attention weights (heads, N)."""
    return [sum(head[place] for head in attention) / len(attention) for place in range(attention.shape[1])]
