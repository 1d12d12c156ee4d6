"""SDTPS as three separate branches, one operation per step of docs/method.md; without Gumbel noise."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Branch(nn.Module):
    """Selection and aggregation of the patches of one modality."""

    def __init__(self, width, patches, sparse_ratio, aggr_ratio, beta):
        super().__init__()
        self.keep, self.beta = max(1, math.ceil(patches * sparse_ratio)), beta
        hidden, out_tokens = int(width * 0.2), int(patches * aggr_ratio * sparse_ratio)
        self.predictor = nn.Sequential(
            nn.Linear(width, width // 4), nn.GELU(), nn.Linear(width // 4, 1)
        )
        self.merger = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, out_tokens)
        )
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def forward(self, patches, guide, others):
        """patches (B, N, C), own and other global features (B, C) → selected tokens (B, N_c + 1, C), mask (B, N)."""
        with torch.no_grad():
            guidance = 2 * similarity(patches, guide) + sum(
                similarity(patches, other) for other in others
            )
        score = (1 - 2 * self.beta) * torch.sigmoid(
            self.predictor(patches).squeeze(-1)
        ) + self.beta * guidance

        order = torch.argsort(score, dim=1, descending=True, stable=True)
        ordered = torch.gather(patches, 1, order.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
        selected, dropped = ordered[:, : self.keep], ordered[:, self.keep :]
        weights = torch.softmax(torch.gather(score, 1, order)[:, self.keep :], dim=1)
        extra = torch.sum(weights.unsqueeze(-1) * dropped, dim=1, keepdim=True)
        mask = torch.zeros_like(score).scatter(1, order[:, : self.keep], 1.0)

        logits = self.merger(selected).transpose(1, 2) * self.scale
        logits = logits.masked_fill(
            torch.gather(mask, 1, order[:, : self.keep]).unsqueeze(1) == 0, float("-inf")
        )
        merged = torch.bmm(torch.softmax(logits, dim=-1), selected)
        return torch.cat([merged, extra], dim=1), mask


def similarity(patches, guide):
    """Cosine of patches (B, N, C) with a global feature (B, C), min-max normalised over the patches → (B, N)."""
    cosine = torch.sum(
        F.normalize(patches, dim=-1) * F.normalize(guide, dim=-1).unsqueeze(1), dim=-1
    )
    low, high = cosine.min(dim=1, keepdim=True)[0], cosine.max(dim=1, keepdim=True)[0]
    return (cosine - low) / (high - low + 1e-8)


class ThreeBranches(nn.Module):
    """SDTPS for RGB, NI and TI; interface of modeling.sdtps.MultiModalSDTPS."""

    def __init__(self, width=512, patches=128, sparse_ratio=0.5, aggr_ratio=0.4, beta=0.25):
        super().__init__()
        self.rgb, self.nir, self.tir = (
            Branch(width, patches, sparse_ratio, aggr_ratio, beta) for _ in range(3)
        )

    def load_ours(self, weights):
        """Load the state dict of a MultiModalSDTPS."""
        self.load_state_dict({name_of_branch(name): weight for name, weight in weights.items()})
        return self

    def forward(self, RGB_cash, NI_cash, TI_cash, RGB_global, NI_global, TI_global):
        rgb, rgb_mask = self.rgb(RGB_cash, RGB_global, (NI_global, TI_global))
        nir, nir_mask = self.nir(NI_cash, NI_global, (RGB_global, TI_global))
        tir, tir_mask = self.tir(TI_cash, TI_global, (RGB_global, NI_global))
        return rgb, nir, tir, rgb_mask, nir_mask, tir_mask


def name_of_branch(name):
    """Name here of a parameter of MultiModalSDTPS."""
    for ours, theirs in (
        ("_sparse.score_predictor", ".predictor"),
        ("_aggr.weight", ".merger"),
        ("_aggr.scale", ".scale"),
    ):
        name = name.replace(ours, theirs)
    return name
