"""HDM and ATMoE with one module per attention and per expert, under DeMo's parameter names (docs/method.md)."""

import torch
from torch import nn

MODALITIES_OF = {
    "r": ["RGB"],
    "n": ["NI"],
    "t": ["TI"],
    "rn": ["RGB", "NI"],
    "rt": ["RGB", "TI"],
    "nt": ["NI", "TI"],
    "rnt": ["RGB", "NI", "TI"],
}


class QuickGELU(nn.Module):
    def forward(self, inputs):
        return inputs * torch.sigmoid(1.702 * inputs)


class Fusion(nn.Module):
    """HDM: seven learned queries, each with its own attention; with `heads` also ATMoE on their features. Patches {modality:
    (B, N, C)} and global features {modality: (B, C)} → (B, 7C)."""

    def __init__(self, width, heads=None, dropout=0.1):
        super().__init__()
        for subset in MODALITIES_OF:
            self.register_parameter(
                f"{subset}_token", nn.Parameter(torch.randn(1, 1, width) / width**0.5)
            )
        for subset in MODALITIES_OF:
            self.add_module(
                subset, nn.MultiheadAttention(width, width // 64, dropout=dropout, batch_first=True)
            )
        self.moe = MixtureOfExperts(width, heads) if heads else None

    def decouple(self, patches, global_feats):
        """Seven features (B, C)."""
        features = []
        for subset, modalities in MODALITIES_OF.items():
            parts = [
                tensor
                for modality in modalities
                for tensor in (global_feats[modality][:, None], patches[modality])
            ]
            tokens = torch.cat(parts, dim=1)
            query = getattr(self, f"{subset}_token").expand(len(tokens), -1, -1)
            feature, _ = self.get_submodule(subset)(query, tokens, tokens)
            features.append(feature[:, 0])
        return features

    def forward(self, patches, global_feats):
        features = self.decouple(patches, global_feats)
        return torch.cat(self.moe(features) if self.moe else features, dim=1)


class MixtureOfExperts(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.experts = nn.ModuleList(experts(width // heads) for _ in range(heads))
        self.gating_network = nn.ModuleDict({"gate": Gate(width, heads)})

    def forward(self, features):
        """Seven features (B, C) → the same, weighted."""
        gates = self.gating_network["gate"](features)
        weighted = []
        for number, feature in enumerate(features):
            outputs = []
            for head, chunk in enumerate(feature.chunk(len(self.experts), dim=1)):
                expert = self.experts[head]["expertHead"][number]["mlp"]
                outputs.append(gates[head][:, number, None] * expert(chunk))
            weighted.append(torch.cat(outputs, dim=1))
        return weighted


def experts(width):
    """The seven experts of one head."""
    layers = [
        nn.Sequential(nn.Linear(width, width), QuickGELU(), nn.BatchNorm1d(width))
        for _ in MODALITIES_OF
    ]
    return nn.ModuleDict(
        {"expertHead": nn.ModuleList(nn.ModuleDict({"mlp": each}) for each in layers)}
    )


class Gate(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.linear_re = nn.Sequential(
            nn.Linear(len(MODALITIES_OF) * width, width), QuickGELU(), nn.BatchNorm1d(width)
        )
        self.q_ = nn.Linear(width, width, bias=False)
        self.k_ = nn.Linear(width, width, bias=False)

    def forward(self, features):
        """Seven features (B, C) → for each head the weights (B, 7)."""
        queries = self.q_(self.linear_re(torch.cat(features, dim=1))).chunk(self.heads, dim=1)
        gates = []
        for head, query in enumerate(queries):
            keys = [self.k_(feature).chunk(self.heads, dim=1)[head] for feature in features]
            logits = [(query * key).sum(dim=1) / query.shape[1] ** 0.5 for key in keys]
            gates.append(torch.stack(logits, dim=1).softmax(dim=1))
        return gates
