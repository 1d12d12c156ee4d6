"""Scores of patches that need no training: distinctness, and the attention of the class token."""
import torch
import torch.nn.functional as F

from demo_sdtps.modeling.sdtps import cosines
from demo_sdtps.modeling.selectors.base import Context, Score


def distinctness(tokens: torch.Tensor) -> torch.Tensor:
    """1 - cos(x_i, mean_j x_j) of tokens (B, N, C) → (B, N) float32 in [0, 2], without gradient.

    The background is most of a picture and much alike, so that the mean is near to it.
    """
    return 1 - cosines(tokens, tokens.detach().float().mean(dim=-2).unsqueeze(0))[0]


def mean_attention(attention: torch.Tensor) -> torch.Tensor:
    """Mean over the heads of attention weights (B, heads, N) → (B, N) float32, without gradient (EViT, ICLR 2022)."""
    return attention.detach().float().mean(dim=1)


def attention_divergence(score: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of softmax(score) from attention weights, mean over B: score (B, N), attention
    (B, heads, N) → a scalar.

    The weights are averaged over the heads and scaled to the sum 1 over the N patches; no gradient goes to them.
    """
    target = mean_attention(attention)
    target = target / target.sum(dim=-1, keepdim=True)
    return F.kl_div(score.float().log_softmax(dim=-1), target, reduction="batchmean")


class Distinctness(Score):
    """`distinctness` in the own modality."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return distinctness(tokens)


class Attention(Score):
    """`mean_attention` of the own modality's class token; needs `Context.attention`."""

    needs_attention = True

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return mean_attention(context.attention[context.modality])
