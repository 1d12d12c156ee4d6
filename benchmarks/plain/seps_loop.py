"""SEPS by a loop over the captions, as in the published code (docs/seps.md).

As there, norms and the similarity with the mean of the image are computed once, and the score MLP for every caption.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn


class Selection(nn.Module):
    """Keeps the best patches; the rest becomes one extra token. `width` None: without a score MLP."""

    def __init__(self, width, keep, beta, tau):
        super().__init__()
        self.keep, self.beta, self.tau = keep, beta, tau
        if width is not None:
            self.score_predictor = nn.Sequential(nn.Linear(width, width // 4), nn.GELU(), nn.Linear(width // 4, 1))

    def predict(self, patches, guidance):
        """patches (B, N, C), weighted guidance (B, N) → scores (B, N)."""
        return (1 - 2 * self.beta) * torch.sigmoid(self.score_predictor(patches).squeeze(-1)) + self.beta * guidance

    def forward(self, patches, score):
        """patches (B, N, C), score (B, N) → selected (B, S, C), extra (B, 1, C), mask (B, N), mask of selected (B, S)."""
        ordered, order = torch.sort(score, dim=1, descending=True, stable=True)
        kept, dropped = order[:, :self.keep], order[:, self.keep:]
        selected = torch.gather(patches, 1, kept.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
        others = torch.gather(patches, 1, dropped.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
        weights = F.softmax(ordered[:, self.keep:], dim=1)
        extra = torch.sum(weights.unsqueeze(-1) * others, dim=1, keepdim=True)
        mask = torch.zeros_like(score).scatter(1, kept, 1.0)
        if self.tau is not None and self.training:
            soft = F.softmax((score - torch.empty_like(score).exponential_().log()) / self.tau, dim=1)
            mask = mask + (soft - soft.detach())
        return selected, extra, mask, torch.gather(mask, 1, kept)


class Aggregation(nn.Module):
    """Aggregates selected patches to weighted means; one weight MLP for each of `names`, one scale."""

    def __init__(self, width, out_tokens, names):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 1, 1))
        for name in names:
            setattr(self, name, nn.Sequential(nn.LayerNorm(width), nn.Linear(width, int(width * 0.2)), nn.GELU(),
                                              nn.Linear(int(width * 0.2), out_tokens)))

    def forward(self, name, selected, decision):
        """selected (B, S, C), decision (B, S) → (B, N_c, C)."""
        logits = getattr(self, name)(selected).transpose(1, 2) * self.scale + decision.log().unsqueeze(1)
        return torch.bmm(F.softmax(logits, dim=-1), selected)


class Relevance(nn.Module):
    """HRPA of tokens (B, P, C) and words of one caption (L, C) → (B, 1)."""

    def __init__(self, paper, top_k):
        super().__init__()
        self.top_k = top_k
        self.relevance_mlp = None
        if paper:
            self.relevance_mlp = nn.Sequential(nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1))

    def forward(self, tokens, words):
        cosines = F.normalize(words, dim=-1) @ F.normalize(tokens, dim=-1).transpose(1, 2)
        if self.relevance_mlp is None:
            cosines = F.leaky_relu(cosines, 0.1)
        of_words, of_tokens = cosines.max(dim=2)[0], cosines.max(dim=1)[0]
        found = of_words.mean(dim=1, keepdim=True) + of_tokens.mean(dim=1, keepdim=True)
        if self.relevance_mlp is not None:
            found = found + self.of_best(of_words) + self.of_best(of_tokens)
        return found

    def of_best(self, values):
        """(B, n) → (B, 1)."""
        best = torch.topk(values, min(self.top_k, values.shape[1]), dim=1)[0]
        return self.relevance_mlp(F.pad(best, (0, self.top_k - best.shape[1])))


class PlainSEPS(nn.Module):
    """Interface and state-dict keys of `seps.CrossSparseAggrNet`."""

    def __init__(self, embed_size=512, num_patches=196, sparse_ratio=0.5, aggr_ratio=0.4, use_paper_version=False, top_k=5,
                 use_gumbel_softmax=False, gumbel_tau=1.0, use_dual_aggr=True, beta=0.25):
        super().__init__()
        self.num_patches, self.paper, self.dual = num_patches, use_paper_version, use_dual_aggr
        keep, tau = max(1, math.ceil(num_patches * sparse_ratio)), gumbel_tau if use_gumbel_softmax else None
        self.sparse_net_cap, self.sparse_net_long = (
            Selection(embed_size if use_paper_version else None, keep, beta, tau) for _ in range(2))
        names = ("weight_sparse", "weight_dense") if use_paper_version and use_dual_aggr else ("weight",)
        self.aggr_net = Aggregation(embed_size, int(num_patches * aggr_ratio * sparse_ratio), names)
        self.hrpa = Relevance(use_paper_version, top_k)

    def forward(self, img_embs, cap_embs, cap_lens, long_cap_embs=None, long_cap_lens=None):
        """Image tokens (B_v, N or N + 1, C), captions (B_t, L, C), lengths (B_t,) → similarities (B_v, B_t) and, in training,
        masks (B_t, B_v, N): a tensor in the open version, a tuple in the paper version."""
        first, patches = img_embs[:, :-self.num_patches], img_embs[:, -self.num_patches:]
        with torch.no_grad():
            directions = F.normalize(patches, dim=-1)
            own = similarity(directions, patches.mean(dim=1, keepdim=True))
        of_caption = self.paper_caption if self.paper else self.open_caption
        columns, masks = [], []
        for i in range(len(cap_embs)):
            texts = [cap_embs[i, :cap_lens[i]]]
            if long_cap_embs is not None:  # without a gradient, as in the published code
                texts.append(long_cap_embs[i, :long_cap_lens[i]].detach())
            with torch.no_grad():
                seen = [similarity(directions, words.mean(dim=0, keepdim=True)) for words in texts]
            found, mask = of_caption(first, patches, own, seen, texts)
            columns.append(found)
            masks.append(mask)
        similarities = torch.cat(columns, dim=1)
        if not self.training:
            return similarities
        by_branch = tuple(torch.stack(mask) for mask in zip(*masks, strict=True))
        return similarities, by_branch if self.paper else sum(by_branch)

    def open_caption(self, first, patches, own, seen, texts):
        """Similarities (B_v, 1) and masks [(B_v, N)] of one caption: each branch is matched with its own words."""
        found, masks = 0, []
        for select, words, guidance in zip((self.sparse_net_cap, self.sparse_net_long), texts, seen, strict=False):
            selected, extra, mask, decision = select(patches, own + guidance)
            aggregated = self.aggr_net("weight", selected, decision)
            found = found + self.hrpa(torch.cat([first, aggregated, extra], dim=1), words)
            masks.append(mask)
        return found, masks

    def paper_caption(self, first, patches, own, seen, texts):
        """As `open_caption`, but the tokens of all branches are merged and matched with the words of the caption."""
        guidance = 2 * min_max(own) + sum(min_max(values) for values in seen)
        branches = [(self.sparse_net_cap, "weight_sparse" if self.dual else "weight")]
        if self.dual and len(texts) > 1:
            branches.append((self.sparse_net_long, "weight_dense"))
        aggregated, extras, masks = 0, [], []
        for select, name in branches:
            selected, extra, mask, decision = select(patches, select.predict(patches, guidance))
            aggregated = aggregated + self.aggr_net(name, selected, decision)
            extras.append(extra)
            masks.append(mask)
        tokens = torch.cat([first, aggregated, torch.stack(extras).mean(dim=0)], dim=1)
        return self.hrpa(tokens, texts[0]), masks


def similarity(directions, guide):
    """Cosine of normalised patches (B, N, C) with a guide (B or 1, 1, C) or (1, C) → (B, N)."""
    return torch.sum(directions * F.normalize(guide, dim=-1), dim=-1)


def min_max(values):
    """Min-max normalisation over the patches, (B, N)."""
    low, high = values.min(dim=1, keepdim=True)[0], values.max(dim=1, keepdim=True)[0]
    return (values - low) / (high - low + 1e-8)
