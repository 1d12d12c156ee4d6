"""CLIP's image encoder ViT-B/16, in timm's VisionTransformer (docs/method.md; Radford et al., ICML 2021)."""

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.modeling.backbones.vit import Backbone, Transformer

NAME_IN_TIMM = "vit_base_patch16_clip_quickgelu_224"
CLIP_WIDTH = 512  # width of CLIP's joint space, to which its projection maps every token

QUICK_GELU = 1.702


class QuickGELUMlp(Mlp):
    """timm's MLP of a block with quick GELU, with fewer passes over the hidden activations. x·sigmoid(s·x) = silu(s·x) / s with
    s = 1.702. Both factors multiply the weights, or are factors of the matrix products, so that one elementwise operation is
    left that stores one tensor for the backward pass, in place of three that store two."""

    is_folded = False  # whether the weights have the factors now

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, N, C) → (B, N, C)."""
        (first, bias), (last, last_bias) = self.fc1.parameters(), self.fc2.parameters()
        if self.is_folded:
            return F.linear(F.silu(F.linear(tokens, first, bias)), last, last_bias)
        if torch.is_grad_enabled() or torch.compiler.is_exporting():
            # Weights are smaller than the gradients that a product with a factor multiplies, and constant in a file.
            hidden = F.silu(F.linear(tokens, QUICK_GELU * first, QUICK_GELU * bias))
            return F.linear(hidden, last / QUICK_GELU, last_bias)
        hidden = torch.addmm(QUICK_GELU * bias, tokens.flatten(0, 1), first.t(), alpha=QUICK_GELU)
        F.silu(hidden, inplace=True)
        return torch.addmm(last_bias, hidden, last.t(), alpha=1 / QUICK_GELU).view_as(tokens)

    @torch.no_grad()
    def fold(self) -> nn.Sequential:
        """The same function for inference in half precision, in which products with a factor are slower; multiplies this
        module's own weights by the factors, in place."""
        for parameter in self.fc1.parameters():
            parameter.mul_(QUICK_GELU)
        self.fc2.weight /= QUICK_GELU
        return nn.Sequential(self.fc1, nn.SiLU(inplace=True), self.fc2)


class CLIP(Backbone):
    """Camera embedding on the class token only, also for a single camera; projection to C = 512 on all tokens."""

    min_cameras = 1
    has_new_camera_embedding = True
    camera_on_patches = False

    def learning_rate(self, base_lr: float) -> float:
        return 5e-6

    def build(self, cfg: CfgNode) -> Transformer:
        vit = self._create(cfg, NAME_IN_TIMM, mlp_layer=QuickGELUMlp)
        vit.head = nn.Linear(vit.embed_dim, CLIP_WIDTH, bias=False)
        return vit

    def _fold(self) -> None:
        for block in self.vit.blocks:
            if isinstance(block.mlp, QuickGELUMlp):
                block.mlp = block.mlp.fold()
