"""SDTPS whose guidance tells images apart: cosines of tokens and global features less their means over the batch.

An experiment of studies/diagnosis.yml, not a part of the method: the guidance of an image depends on its batch.
"""
import torch

from demo_sdtps.modeling.selectors.sdtps import SDTPS


class CentredSDTPS(SDTPS):
    def guidance(self, tokens: torch.Tensor, guides: torch.Tensor) -> torch.Tensor:
        return super().guidance(tokens - tokens.mean(dim=(0, 1)), guides - guides.mean(dim=1, keepdim=True))
