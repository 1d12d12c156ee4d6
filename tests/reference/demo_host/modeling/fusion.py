"""HDM and ATMoE under DeMo's weight names: what generalFusion takes and returns."""

import torch
from torch import nn

SUBSETS = {
    "r": (0,),
    "n": (1,),
    "t": (2,),
    "rn": (0, 1),
    "rt": (0, 2),
    "nt": (1, 2),
    "rnt": (0, 1, 2),
}


class QuickGELU(nn.Module):
    def forward(self, values):
        return values * torch.sigmoid(1.702 * values)


def holder(**modules):
    """A module that holds others under names, for the weight names alone."""
    module = nn.Module()
    for name, part in modules.items():
        module.add_module(name, part)
    return module


class Mixture(nn.Module):
    """ATMoE: seven experts per head, weighed by attention between the seven features."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, part = heads, width // heads

        def expert():
            return holder(
                mlp=nn.Sequential(nn.Linear(part, part), QuickGELU(), nn.BatchNorm1d(part))
            )

        self.experts = nn.ModuleList(
            holder(expertHead=nn.ModuleList(expert() for _ in SUBSETS)) for _ in range(heads)
        )
        summary = nn.Sequential(nn.Linear(7 * width, width), QuickGELU(), nn.BatchNorm1d(width))
        self.gating_network = holder(
            gate=holder(
                linear_re=summary,
                q_=nn.Linear(width, width, bias=False),
                k_=nn.Linear(width, width, bias=False),
            )
        )

    def forward(self, features):
        gate, stacked = self.gating_network.gate, torch.stack(features, dim=1)
        query = gate.q_(gate.linear_re(torch.cat(features, dim=-1))).unflatten(-1, (self.heads, -1))
        key = gate.k_(stacked).unflatten(-1, (self.heads, -1))
        weights = (torch.einsum("bhd,bshd->bhs", query, key) * query.shape[-1] ** -0.5).softmax(
            dim=-1
        )
        parts = stacked.unflatten(-1, (self.heads, -1))
        weighed = [
            torch.stack(
                [
                    weights[:, head, index, None] * expert.mlp(parts[:, index, head])
                    for index, expert in enumerate(self.experts[head].expertHead)
                ],
                dim=1,
            )
            for head in range(self.heads)
        ]
        return torch.cat(weighed, dim=-1).flatten(1)


class GeneralFusion(nn.Module):
    """(feature, loss) in training, the feature alone in evaluation; ATM without HDM fails, as HDM's weights are not there."""

    def __init__(self, width, cfg):
        super().__init__()
        self.HDM, self.ATM = cfg.MODEL.HDM, cfg.MODEL.ATM
        for subset in SUBSETS if self.HDM else ():
            setattr(self, f"{subset}_token", nn.Parameter(torch.randn(1, 1, width) * width**-0.5))
            setattr(self, subset, nn.MultiheadAttention(width, width // 64, dropout=0.1))
        if self.ATM:
            self.moe = Mixture(width, cfg.MODEL.HEAD)

    def forward(self, RGB_cash, NI_cash, TI_cash, RGB_global, NI_global, TI_global):
        tokens = [
            torch.cat([whole.unsqueeze(1), patches], dim=1).transpose(0, 1)
            for patches, whole in zip(
                (RGB_cash, NI_cash, TI_cash), (RGB_global, NI_global, TI_global), strict=True
            )
        ]
        features = []
        for subset, indices in SUBSETS.items():
            query = getattr(self, f"{subset}_token").expand(-1, len(RGB_cash), -1)
            seen = torch.cat([tokens[index] for index in indices])
            features.append(getattr(self, subset)(query, seen, seen)[0][0])
        feature = self.moe(features) if self.ATM else torch.cat(features, dim=-1)
        return (feature, 0) if self.training else feature
