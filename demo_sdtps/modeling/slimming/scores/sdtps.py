"""The score of SDTPS between the backbone's blocks, and SDTPS after them, which aggregates what it keeps (docs/method.md)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from demo_sdtps.config.common import MODALITIES
from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.modalities import ByModality, Grid
from demo_sdtps.modeling.sdtps import STATE_NAMES, MultiModalSDTPS
from demo_sdtps.modeling.slimming.scores.base import Context, Score, Selection


class GuidedScore(Score):
    """(1 - 2β)·MLP + β·Σ weight·guidance, the published score. A subclass says where the MLPs are (`mlp`).

    The global features guide, and where there are none, the class tokens.
    """

    guide_missing = False  # whether missing modalities guide the others

    def __init__(self, width: int, grid: Grid, beta: float = 0.25, **settings: Any):
        super().__init__(width, grid, **settings)
        self.beta = beta

    def mlp(self, modality: str) -> nn.Module:
        """The `score_mlp` of a modality."""
        raise NotImplementedError

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        guidance, weights = self._guidance(tokens, context)
        predicted = sdtps.predict(self.mlp(context.modality), tokens)
        return sdtps.guided_score(predicted, guidance, weights, self.beta)

    def parts(self, tokens: torch.Tensor, context: Context) -> ByModality:
        """Terms of the score (B, N), which the analysis of the selection measures as detectors: "MLP", and by modality the
        guidance of its global feature."""
        guides = [MODALITIES[i] for i in sdtps.guide_order(MODALITIES.index(context.modality))]
        guidance = dict(zip(guides, self._guidance(tokens, context)[0], strict=True))
        predicted = sdtps.predict(self.mlp(context.modality), tokens)
        return {"MLP": predicted, **{modality: guidance[modality] for modality in MODALITIES}}

    def _guidance(
        self, tokens: torch.Tensor, context: Context
    ) -> tuple[torch.Tensor, tuple[float | torch.Tensor, ...]]:
        """→ guidance (G, B, N) in `guide_order` and its weights."""
        sources = context.global_feats or context.class_tokens
        absent = {} if self.guide_missing else context.missing
        missing = [name not in sources or absent.get(name, False) for name in MODALITIES]
        # A modality without tokens has the weight 0, whatever stands in its place.
        global_feats = [sources.get(modality, sources[context.modality]) for modality in MODALITIES]
        guides, weights = sdtps.guides_of(MODALITIES.index(context.modality), global_feats, missing)
        return sdtps.cosine_guidance(tokens, guides), weights


class SDTPSScore(GuidedScore):
    """The published score at any place in the backbone, with an MLP per modality. Missing modalities do not guide."""

    def __init__(
        self, width: int, grid: Grid, modalities: Sequence[str] = MODALITIES, **settings: Any
    ):
        super().__init__(width, grid, **settings)
        self.score_predictor = nn.ModuleDict({name: sdtps.score_mlp(width) for name in modalities})

    def mlp(self, modality: str) -> nn.Module:
        return self.score_predictor[modality]


class SDTPS(GuidedScore):
    """SDTPS after the backbone: the modules of `MultiModalSDTPS` under their names, on a `Context`.

    `settings` are arguments of `MultiModalSDTPS`. With `guide_missing` missing modalities guide the others.
    """

    def __init__(
        self,
        width: int,
        grid: Grid,
        patches: int,
        guide_missing: bool,
        modalities: Sequence[str] = MODALITIES,
        **settings: Any,
    ):
        super().__init__(width, grid, beta=settings["beta"])
        self.guide_missing = guide_missing
        whole = MultiModalSDTPS(width, patches, **settings)
        for modality, name in zip(MODALITIES, STATE_NAMES, strict=True):
            for part in (f"{name}_sparse", f"{name}_aggr") if modality in modalities else ():
                self.add_module(part, whole.get_submodule(part))

    def mlp(self, modality: str) -> nn.Module:
        return self.part(modality, "sparse").score_predictor

    def forward(self, context: Context) -> dict[str, Selection]:  # type: ignore[override]  # more than scores
        """The aggregated tokens and the extra token of every modality, (B, N_c + 1, C)."""
        selections = {}
        for modality, score in self.scores(context).items():
            tokens = context.tokens[modality]
            kept, extra, mask, decision, index = self.part(modality, "sparse").split(tokens, score)
            rows = torch.cat([self.part(modality, "aggr")(kept, decision), extra], dim=1)
            selections[modality] = Selection(rows.to(tokens.dtype), mask, score, index)
        return selections

    def part(self, modality: str, part: str) -> Any:
        """The `TokenSparse` ("sparse") or `TokenAggregation` ("aggr") of a modality."""
        return getattr(self, f"{STATE_NAMES[MODALITIES.index(modality)]}_{part}")
