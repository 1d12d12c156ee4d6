"""SDTPS as a selector, and its score alone (modeling/sdtps.py, docs/method.md)."""
from abc import abstractmethod

import torch
from timm.layers import QuickGELU
from torch import nn
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
    predict,
    score_mlp,
)
from demo_sdtps.modeling.selectors import make_score
from demo_sdtps.modeling.selectors.base import ByModality, Context, Score, Selection, Selector


class GuidedScore(Score):
    """(1 - 2β)·MLP + β·Σ weight·guidance, the published score. A subclass says where the MLPs are (`mlp`).

    The global features guide, and where there are none, the class tokens.
    """

    guide_missing = False  # whether missing modalities guide the others

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        self.beta = cfg.MODEL.SDTPS_BETA

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        guidance, weights = self._guided(tokens, context)
        return guided_score(predict(self.mlp(context), tokens), guidance, weights, self.beta)

    def parts(self, tokens: torch.Tensor, context: Context) -> ByModality:
        """"MLP", and by modality the guidance of its global feature."""
        guidance = self._guided(tokens, context)[0]
        by_index = dict(zip(guide_order(MODALITIES.index(context.modality)), guidance, strict=True))
        return {"MLP": predict(self.mlp(context), tokens),
                **{modality: by_index[index] for index, modality in enumerate(MODALITIES)}}

    @abstractmethod
    def mlp(self, context: Context) -> nn.Module:
        """The `score_mlp` of `context.modality`."""

    def guidance(self, tokens: torch.Tensor, guides: torch.Tensor) -> torch.Tensor:
        """tokens (B, N, C), guides (G, B, C) → (G, B, N)."""
        return cosine_guidance(tokens, guides)

    def _guided(self, tokens: torch.Tensor, context: Context) -> tuple[torch.Tensor, tuple[float, ...]]:
        """→ guidance (G, B, N) in `guide_order` and its weights."""
        found = context.global_feats or context.class_tokens
        missing = [modality not in found or (modality in context.missing and not self.guide_missing)
                   for modality in MODALITIES]
        # A modality without tokens has the weight 0, whatever stands in its place.
        global_feats = [found.get(modality, found[context.modality]) for modality in MODALITIES]
        guides, weights = guides_of(MODALITIES.index(context.modality), global_feats, missing)
        return self.guidance(tokens, guides), weights


class SDTPSScore(GuidedScore):
    """The published score at any place in the backbone, with an MLP per modality. Missing modalities do not guide."""

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        self.score_predictor = nn.ModuleDict({modality: score_mlp(width) for modality in MODALITIES})

    def mlp(self, context: Context) -> nn.Module:
        return self.score_predictor[context.modality]


class SDTPS(GuidedScore, Selector):
    """`MultiModalSDTPS` with the settings MODEL.SDTPS_… and its parameter names.

    With MODEL.SDTPS_SCORE another score selects, `other_score`, and the MLPs have no effect; with MODEL.SDTPS_PROJECTION
    `project` maps the tokens of each modality by LayerNorm → Linear(C → C) → quick GELU, as PIFE the global features.
    """

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        model = cfg.MODEL
        try:
            sdtps = MultiModalSDTPS(width, self.patches,
                                    **{name: model[f"SDTPS_{name.upper()}"] for name in SDTPS_ARGUMENTS})
        except ValueError as error:
            raise UserError(f"MODEL.SDTPS_SPARSE_RATIO and MODEL.SDTPS_AGGR_RATIO do not fit: {error}") from None
        for name, module in sdtps.named_children():
            self.add_module(name, module)
        self.guide_missing, self.loss_weight = model.SDTPS_GUIDE_MISSING, model.SDTPS_LOSS_WEIGHT
        self.other_score = make_score(model.SDTPS_SCORE, cfg, width, grid) if model.SDTPS_SCORE != "published" else None
        self.project = nn.ModuleDict({modality: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), QuickGELU())
                                      for modality in MODALITIES}) if model.SDTPS_PROJECTION else None

    def scores(self, context: Context) -> ByModality:
        return self.other_score.scores(context) if self.other_score else super().scores(context)

    def parts(self, tokens: torch.Tensor, context: Context) -> ByModality:
        return self.other_score.parts(tokens, context) if self.other_score else super().parts(tokens, context)

    def scalars(self) -> dict[str, float]:
        return self.other_score.scalars() if self.other_score else {}

    def select(self, tokens: torch.Tensor, score: torch.Tensor, context: Context) -> Selection:
        """The aggregated tokens and the extra token, (B, N_c + 1, C), projected with MODEL.SDTPS_PROJECTION."""
        kept, extra, mask, decision, index = self.sparse(context).split(tokens, score)
        aggregated = self.aggregate(self.aggregation(context), kept, decision)
        selected = torch.cat([aggregated, extra], dim=1).to(tokens.dtype)
        return Selection(self.project[context.modality](selected) if self.project else selected, mask, score, index)

    def mlp(self, context: Context) -> nn.Module:
        return self.sparse(context).score_predictor

    def aggregate(self, aggregation: TokenAggregation, kept: torch.Tensor, decision: torch.Tensor) -> torch.Tensor:
        """kept (B, S, C), decision (B, S) → (B, N_c, C)."""
        return aggregation(kept, decision)

    def sparse(self, context: Context) -> TokenSparse:
        return getattr(self, f"{STATE_NAMES[MODALITIES.index(context.modality)]}_sparse")

    def aggregation(self, context: Context) -> TokenAggregation:
        return getattr(self, f"{STATE_NAMES[MODALITIES.index(context.modality)]}_aggr")
