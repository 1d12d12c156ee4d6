"""timm's Eva: EVA-02, DINOv3 and other Vision Transformers with rotary position embedding (RoPE; docs/method.md)."""
from typing import Any

import torch
from timm.models.eva import Eva
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.modeling.backbones.vit import ViT, check_grid, create, regularisation, set_grid


class EvaViT(ViT):
    """As `ViT`, with timm's rotary embedding of the grid's rows and columns in every block, and with a learned absolute
    position embedding or without."""

    vit: Eva

    def build(self, cfg: CfgNode) -> Eva:
        vit = create(cfg.MODEL.TRANSFORMER_TYPE, **regularisation(cfg))
        assert isinstance(vit, Eva)
        # Eva takes no other class of patch embedding, so that what depends on the grid is replaced after construction.
        embed, patches = vit.patch_embed, vit.patch_embed.num_patches
        set_grid(embed, tuple(cfg.INPUT.SIZE_TRAIN), tuple(cfg.MODEL.STRIDE_SIZE))
        check_grid(cfg, vit)
        if vit.pos_embed is not None:
            length = vit.pos_embed.shape[1] - patches + embed.num_patches
            vit.pos_embed = nn.Parameter(torch.empty(1, length, vit.embed_dim))
            nn.init.trunc_normal_(vit.pos_embed, std=0.02)
        rope: Any = vit.rope  # timm's rotary embeddings have no common class
        if rope is not None:
            rope.update_feat_shape(list(embed.grid_size))
        return vit

    def _run_blocks(self, tokens: torch.Tensor) -> torch.Tensor:
        rope: Any = self.vit.rope
        embedding: Any = None if rope is None else rope.get_embed()
        for index, block in enumerate(self.vit.blocks):
            tokens = block(tokens, rope=embedding[index] if self.vit.rope_mixed else embedding)
        return tokens
