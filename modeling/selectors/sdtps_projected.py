"""SDTPS with a layer of its own per modality for the selected tokens, as PIFE has one for the global features.

An experiment of studies/diagnosis.yml, not a part of the method.
"""
from dataclasses import replace

import torch
from timm.layers import QuickGELU
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.modeling.selectors.base import Context, Selection
from demo_sdtps.modeling.selectors.sdtps import SDTPS


class ProjectedSDTPS(SDTPS):
    """LayerNorm → Linear(C → C) → quick GELU over the tokens of SDTPS."""

    def __init__(self, cfg: CfgNode, width: int, grid: tuple[int, int]):
        super().__init__(cfg, width, grid)
        self.project = nn.ModuleDict({modality: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), QuickGELU())
                                      for modality in MODALITIES})

    def select(self, tokens: torch.Tensor, score: torch.Tensor, context: Context) -> Selection:
        selection = super().select(tokens, score, context)
        return replace(selection, tokens=self.project[context.modality](selection.tokens))
