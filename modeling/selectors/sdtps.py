"""SDTPS as a selector (modeling/sdtps.py, docs/method.md)."""
import torch
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import SDTPS_ARGUMENTS
from demo_sdtps.modeling.sdtps import (
    STATE_NAMES,
    MultiModalSDTPS,
    TokenAggregation,
    TokenSparse,
    cosine_guidance,
    guide_order,
    guided_score,
    guides_of,
)
from demo_sdtps.modeling.selectors.base import ByModality, Context, Selection, Selector


class SDTPS(Selector):
    """`MultiModalSDTPS` with the settings MODEL.SDTPS_… and its parameter names. Where there are no global features, class
    tokens guide."""

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        model = cfg.MODEL
        try:
            sdtps = MultiModalSDTPS(width, grid[0] * grid[1],
                                    **{name: model[f"SDTPS_{name.upper()}"] for name in SDTPS_ARGUMENTS})
        except ValueError as error:
            raise UserError(f"MODEL.SDTPS_SPARSE_RATIO and MODEL.SDTPS_AGGR_RATIO do not fit: {error}") from None
        for name, module in sdtps.named_children():
            self.add_module(name, module)
        self.beta, self.guide_missing, self.loss_weight = model.SDTPS_BETA, model.SDTPS_GUIDE_MISSING, model.SDTPS_LOSS_WEIGHT

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        """(1 - 2β)·MLP + β·Σ weight·guidance."""
        guidance, weights = self._guided(tokens, context)
        return guided_score(self.sparse(context).predict(tokens), guidance, weights, self.beta)

    def parts(self, tokens: torch.Tensor, context: Context) -> ByModality:
        """"MLP", and by modality the guidance of its global feature."""
        guidance = self._guided(tokens, context)[0]
        by_index = dict(zip(guide_order(MODALITIES.index(context.modality)), guidance, strict=True))
        return {"MLP": self.sparse(context).predict(tokens),
                **{modality: by_index[index] for index, modality in enumerate(MODALITIES)}}

    def select(self, tokens: torch.Tensor, score: torch.Tensor, context: Context) -> Selection:
        """The aggregated tokens and the extra token, (B, N_c + 1, C)."""
        kept, extra, mask, decision, index = self.sparse(context).split(tokens, score)
        aggregated = self.aggregate(self.aggregation(context), kept, decision)
        return Selection(torch.cat([aggregated, extra], dim=1).to(tokens.dtype), mask, score, index)

    def guidance(self, tokens: torch.Tensor, guides: torch.Tensor) -> torch.Tensor:
        """tokens (B, N, C), guides (G, B, C) → (G, B, N)."""
        return cosine_guidance(tokens, guides)

    def aggregate(self, aggregation: TokenAggregation, kept: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
        """kept (B, S, C), decision (B, S) → (B, N_c, C)."""
        return aggregation(kept, decision)

    def sparse(self, context: Context) -> TokenSparse:
        return getattr(self, f"{STATE_NAMES[MODALITIES.index(context.modality)]}_sparse")

    def aggregation(self, context: Context) -> TokenAggregation:
        return getattr(self, f"{STATE_NAMES[MODALITIES.index(context.modality)]}_aggr")

    def _guided(self, tokens: torch.Tensor, context: Context) -> tuple[torch.Tensor, tuple[float, ...]]:
        """→ guidance (G, B, N) in `guide_order` and its weights."""
        global_feats = context.global_feats or context.class_tokens
        missing = [modality in context.missing and not self.guide_missing for modality in MODALITIES]
        guides, weights = guides_of(MODALITIES.index(context.modality), [global_feats[m] for m in MODALITIES], missing)
        return self.guidance(tokens, guides), weights
