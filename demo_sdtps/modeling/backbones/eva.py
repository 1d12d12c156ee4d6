"""timm's Eva: EVA-02, DINOv3 and other Vision Transformers with rotary position embedding (RoPE; docs/method.md)."""

from collections.abc import Sequence
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
            # Sapiens2's would draw another scale for every stage of slimming
            rope.aug_active = False
        return vit

    def block_arguments(self) -> Sequence[dict[str, Any]]:
        rope: Any = self.vit.rope
        if rope is None:
            return super().block_arguments()
        rotation = rope.get_embed()  # (…, N, D), sines and cosines; for all blocks or each
        blocks = range(len(self.vit.blocks))
        return [{"rope": rotation[index] if self.vit.rope_mixed else rotation} for index in blocks]
