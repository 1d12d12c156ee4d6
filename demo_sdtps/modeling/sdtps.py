"""SDTPS: sparse and dense token-aware patch selection for three modalities (docs/method.md; SEPS, ICLR 2026).

Patch tokens are scored by an MLP and by their cosine similarity to the global features of the three modalities. The best are
kept and aggregated into fewer tokens; the others are averaged into one extra token. This file imports torch alone, so that it
can be copied into another code base, and runs on Python 3.8 and torch 1.13, as DeMo does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

STATE_NAMES = {"RGB": "rgb", "NI": "nir", "TI": "tir"}
"""The modalities in their order, and what the names of their parameters begin with."""


def no_autocast(tensor: torch.Tensor) -> AbstractContextManager:
    """Context manager: without autocast on the device of a tensor; the meta device has none."""
    kind = tensor.device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def cosines(tokens: torch.Tensor, guides: torch.Tensor) -> torch.Tensor:
    """Cosine similarity of tokens (..., N, C) with guides (G, ..., C) → (G, ..., N) float32 in [-1, 1], without gradient."""
    with torch.no_grad(), no_autocast(tokens):
        tokens = tokens.float()
        # The norms divide the products, which are far fewer numbers than the tokens.
        products = torch.einsum("...nc,g...c->g...n", tokens, F.normalize(guides.float(), dim=-1))
        return products / tokens.norm(dim=-1).clamp_min(1e-12)


def min_max(similarity: torch.Tensor) -> torch.Tensor:
    """Min-max normalisation over the last dimension: (..., N) → (..., N) in [0, 1]."""
    low, high = similarity.aminmax(dim=-1, keepdim=True)
    return (similarity - low) / (high - low + 1e-8)


def guided_score(
    predicted: torch.Tensor,
    guidance: Iterable[torch.Tensor],
    weights: Iterable[float | torch.Tensor],
    beta: float,
) -> torch.Tensor:
    """(1 - 2β)·predicted + β·Σ weight·guidance, all (..., N)."""
    pairs = zip(weights, guidance)  # noqa: B905 (Python 3.8)
    return (1 - 2 * beta) * predicted + beta * sum(weight * guide for weight, guide in pairs)


def guide_weights(
    modality: str, guides: Iterable[str], missing: Mapping[str, bool | torch.Tensor]
) -> dict[str, float | torch.Tensor]:
    """Weights of the modalities `guides` in the guidance of a modality, its own last.

    Its own global feature has weight 2, another's 1, and that of another modality that is missing 0. The weights are scaled to
    the sum 4, so that the guidance keeps its share of the score. Where `missing` is (B, 1) bool, so are the weights.
    """
    others = (guide for guide in guides if guide != modality)
    weights = {other: 1.0 - 1.0 * missing.get(other, False) for other in others}
    weights[modality] = 2.0
    total = sum(weights.values())
    return {guide: weight * 4.0 / total for guide, weight in weights.items()}


def gumbel_noise(like: torch.Tensor) -> torch.Tensor:
    """Gumbel noise -log(E), E ~ Exp(1), in the shape and dtype of `like`; always finite."""
    # An exponential draw of exactly 0 would give infinite noise and a softmax of NaN.
    return -torch.empty_like(like).exponential_().clamp_min(torch.finfo(like.dtype).tiny).log()


def best(score: torch.Tensor, keep: int) -> torch.Tensor:
    """Indices of the `keep` best of N patches, best first: score (..., N) → (..., keep)."""
    # of equal patches the first: stable, or by ONNX's TopK, as ONNX has no stable sort
    if torch.onnx.is_in_onnx_export():
        return score.topk(keep, dim=-1).indices
    return score.detach().argsort(dim=-1, descending=True, stable=True)[..., :keep]


def select(
    score: torch.Tensor, keep: int, gumbel_tau: float | None = None, by_noise: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `keep` best of N patches: score (..., N) → indices (..., keep), best first, and decision mask (..., N), 1 = kept.

    With a temperature `gumbel_tau` Gumbel noise is drawn and the mask carries the straight-through gradient. With `by_noise`
    the noisy scores choose, which samples without replacement from softmax(score) (Gumbel-top-k, Kool et al. 2019).
    """
    noisy = score if gumbel_tau is None else score + gumbel_noise(score)
    kept = best(noisy if by_noise else score, keep)
    hard = torch.zeros_like(score).scatter(-1, kept, 1.0)
    if gumbel_tau is None:
        return kept, hard
    soft = (noisy / gumbel_tau).softmax(dim=-1)
    return kept, hard + (soft - soft.detach())


def softmax_mean(tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Means of tokens (B, S, C) with the softmax of logits (B, A, S) as weights → (B, A, C) float32.

    Without autocast: the small gradients of a softmax vanish in half precision.
    """
    with no_autocast(tokens):
        return logits.float().softmax(dim=-1) @ tokens.float()


def dropped_weights(score: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
    """Softmax over the dropped patches' scores, 0 for the kept: (..., N), (..., N) → (..., N); zeros if none is dropped."""
    # The softmax over a part is that over all with the others' weights set to 0, so nothing is gathered.
    share = score.float().softmax(dim=-1) * (decision <= 0)
    return share / share.sum(dim=-1, keepdim=True).clamp_min(1e-12)


def log_mask(decision: torch.Tensor) -> torch.Tensor:
    """Logarithm of decisions (..., S) → (..., S) float32: 0 at a kept token, -inf at a dropped one; to be added to logits.

    Its derivative is 1/D = 1 at a kept token and 0 at a dropped one. Subtracting (1 - D)·1e10 gives the same forward and
    multiplies the straight-through gradient by 1e10 (docs/method.md).
    """
    decision = decision.float()
    is_dropped = decision <= 0
    # The logarithm never sees 0, where its derivative is infinite.
    return decision.masked_fill(is_dropped, 1.0).log().masked_fill(is_dropped, -torch.inf)


def aggregate(tokens: torch.Tensor, logits: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
    """Masked aggregation: tokens (B, S, C), logits (B, A, S), decision (B, S) → (B, A, C)."""
    return softmax_mean(tokens, logits.float() + log_mask(decision).unsqueeze(-2))


def score_mlp(embed_dim: int) -> nn.Sequential:
    """The MLP of a score: tokens (..., C) → logits (..., 1)."""
    hidden = embed_dim // 4
    return nn.Sequential(nn.Linear(embed_dim, hidden), nn.GELU(), nn.Linear(hidden, 1))


def predict(mlp: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The part of `score_mlp` in the score: tokens (B, N, C) → (B, N) float32 in [0, 1]."""
    return mlp(tokens).squeeze(-1).float().sigmoid()


class TokenSparse(nn.Module):
    """Keeps the `keep` patches of one modality with the best scores, by the MLP `score_predictor`, and averages the others by
    `dropped_weights`."""

    def __init__(
        self,
        embed_dim: int,
        keep: int,
        use_gumbel: bool = False,
        gumbel_tau: float = 1.0,
        gumbel_select: bool = False,
    ):
        super().__init__()
        self.keep, self.gumbel_select = keep, gumbel_select
        self.gumbel_tau = gumbel_tau if use_gumbel else None
        self.score_predictor = score_mlp(embed_dim)

    def forward(self, tokens: torch.Tensor, score: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """tokens (B, N, C), score (B, N) → kept tokens (B, S, C) best first, extra token (B, 1, C), decision mask (B, N),
        indices of the kept (B, S)."""
        tau = self.gumbel_tau if self.training else None
        kept, decision = select(score, self.keep, tau, self.gumbel_select and self.training)
        with no_autocast(tokens):  # as in `softmax_mean`
            extra = dropped_weights(score, decision).unsqueeze(1) @ tokens.float()
        # Several times as fast on a CPU as gather, whose index is as large as its result.
        rows = torch.arange(tokens.shape[0], device=tokens.device).unsqueeze(-1)
        return tokens[rows, kept], extra, decision, kept


def aggregation_mlp(embed_dim: int, out_tokens: int, dim_ratio: float) -> nn.Sequential:
    """The MLP of an aggregation's logits: tokens (..., C) → (..., out_tokens)."""
    hidden = int(embed_dim * dim_ratio)
    layers = nn.Linear(embed_dim, hidden), nn.GELU(), nn.Linear(hidden, out_tokens)
    return nn.Sequential(nn.LayerNorm(embed_dim), *layers)


class TokenAggregation(nn.Module):
    """Aggregates the kept tokens of one modality into `out_tokens` weighted means."""

    def __init__(self, embed_dim: int, out_tokens: int, dim_ratio: float = 0.2):
        super().__init__()
        self.weight = aggregation_mlp(embed_dim, out_tokens, dim_ratio)
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Weights of the tokens in each mean, before mask and softmax: (B, S, C) → (B, out_tokens, S)."""
        return self.weight(tokens).transpose(1, 2) * self.scale

    def forward(self, selected: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
        """selected (B, S, C), decision (B, S) → (B, out_tokens, C)."""
        return aggregate(selected, self.logits(selected), decision)


def kept_tokens(num_patches: int, sparse_ratio: float) -> int:
    """Patches that are kept: N_s = max(1, ceil(N·sparse_ratio))."""
    return max(1, math.ceil(num_patches * sparse_ratio))


def aggregated_tokens(num_patches: int, sparse_ratio: float, aggr_ratio: float) -> int:
    """Tokens that the kept patches are aggregated into: N_c = int(N·aggr_ratio·sparse_ratio).

    Raises `ValueError` for a ratio outside (0, 1], or where N_c is 0.
    """
    for name, value in (("sparse_ratio", sparse_ratio), ("aggr_ratio", aggr_ratio)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} is {value}, but it must be in (0, 1].")
    count = int(num_patches * aggr_ratio * sparse_ratio)
    if count < 1:
        raise ValueError(
            f"{num_patches} patches · aggregation ratio {aggr_ratio} · sparse ratio {sparse_ratio} is below "
            "one token; raise a ratio."
        )
    return count


@dataclass(frozen=True)
class Selection:
    """What SDTPS makes of the N patches of one modality."""

    tokens: torch.Tensor  # (B, N_c + 1, C): the aggregated tokens and the extra token
    mask: torch.Tensor  # (B, N): 1 for a kept patch, 0 for a dropped one; may carry a gradient
    score: torch.Tensor  # (B, N): the patches with the highest are kept
    index: torch.Tensor  # (B, S) int64: the kept patches, best first


class SDTPS(nn.Module):
    """SDTPS: N patches of each modality → ceil(N·sparse) kept → int(N·aggr·sparse) aggregated + 1 extra.

    `embed_dim` is C, `num_patches` N; `beta` weights the guidance; `gumbel_tau` is the temperature of the straight-through
    softmax; `dim_ratio` is the hidden width of the aggregation's MLP over C. With `gumbel_select` the noise of `use_gumbel`
    also perturbs which patches are kept in training.

    Raises `ValueError` for a ratio outside (0, 1], or where no aggregated token would remain.
    """

    def __init__(
        self,
        embed_dim: int = 512,
        num_patches: int = 128,
        sparse_ratio: float = 0.5,
        aggr_ratio: float = 0.4,
        use_gumbel: bool = False,
        gumbel_tau: float = 1.0,
        beta: float = 0.25,
        dim_ratio: float = 0.2,
        gumbel_select: bool = False,
        modalities: Sequence[str] = tuple(STATE_NAMES),
    ):
        super().__init__()
        self.num_patches, self.beta, self.modalities = num_patches, beta, tuple(modalities)
        self.keep = kept_tokens(num_patches, sparse_ratio)
        self.out_tokens = aggregated_tokens(num_patches, sparse_ratio, aggr_ratio)
        for modality in self.modalities:
            name = STATE_NAMES[modality]
            sparse = TokenSparse(embed_dim, self.keep, use_gumbel, gumbel_tau, gumbel_select)
            self.add_module(f"{name}_sparse", sparse)
            self.add_module(f"{name}_aggr", TokenAggregation(embed_dim, self.out_tokens, dim_ratio))

    def forward(
        self,
        tokens: Mapping[str, torch.Tensor],
        global_feats: Mapping[str, torch.Tensor],
        missing: Mapping[str, bool | torch.Tensor],
    ) -> dict[str, Selection]:
        """Patch tokens (B, N, C) and global features (B, C) by modality → the selection of each.

        `missing`, True or (B, 1) bool by modality: its global feature does not guide the others.
        """
        selections = {}
        for modality, patches in tokens.items():
            name = STATE_NAMES[modality]
            sparse, aggregation = getattr(self, f"{name}_sparse"), getattr(self, f"{name}_aggr")
            weights = guide_weights(modality, global_feats, missing)
            guides = torch.stack([global_feats[guide] for guide in weights])
            guidance = min_max(cosines(patches, guides))
            predicted = predict(sparse.score_predictor, patches)
            score = guided_score(predicted, guidance, weights.values(), self.beta)
            kept, extra, mask, index = sparse(patches, score)
            aggregated = aggregation(kept, mask.gather(1, index))
            slimmed = torch.cat([aggregated, extra], dim=1).to(patches.dtype)
            selections[modality] = Selection(slimmed, mask, score, index)
        return selections


class MultiModalSDTPS(SDTPS):
    """`SDTPS` for RGB, NI and TI in the form in which DeMo calls it."""

    def forward(  # type: ignore[override]  # the published arguments
        self,
        RGB_cash: torch.Tensor,
        NI_cash: torch.Tensor,
        TI_cash: torch.Tensor,
        RGB_global: torch.Tensor,
        NI_global: torch.Tensor,
        TI_global: torch.Tensor,
        missing: tuple[bool, ...] = (False, False, False),
    ) -> tuple[torch.Tensor, ...]:
        """Patch tokens (B, N, C) and global features (B, C) of RGB, NI and TI → their tokens (B, N_c + 1, C), then their
        decision masks (B, N). The global features of `missing` modalities do not guide the others.

        Raises `ValueError` where the number of patches is not that of the constructor.
        """
        patches, global_feats = (RGB_cash, NI_cash, TI_cash), (RGB_global, NI_global, TI_global)
        counts = [int(tokens.shape[1]) for tokens in patches]
        if any(count != self.num_patches for count in counts):
            raise ValueError(
                f"The input has {counts} patches, but this SDTPS is for {self.num_patches}."
            )
        values: Any = (patches, global_feats, missing)
        arguments: Any = (dict(zip(STATE_NAMES, each)) for each in values)  # noqa: B905 (Python 3.8)
        selections = super().forward(*arguments).values()
        return *(each.tokens for each in selections), *(each.mask for each in selections)
