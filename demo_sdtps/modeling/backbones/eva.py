"""timm's Eva: EVA-02, DINOv3 and other Vision Transformers with rotary position embedding (RoPE; docs/method.md)."""

from collections.abc import Callable
from typing import Any

import torch
from timm.models.eva import Eva
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.modeling.backbones.vit import ViT, check_grid, create, regularisation, set_grid
from demo_sdtps.modeling.slimming.state import State, rotary


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

    def block_arguments(
        self, values: torch.Tensor, state: State | None
    ) -> Callable[[int], dict[str, Any]]:
        others, rope = super().block_arguments(values, state), self.rotation(state)
        if rope is None:
            return others
        return lambda index: {**others(index), "rope": rope[index] if self.vit.rope_mixed else rope}

    def rotation(self, state: State | None) -> torch.Tensor | None:
        """timm's rotary embedding of the patches and extra tokens, for all blocks or each; extra tokens are not rotated."""
        if self.vit.rope is None:
            return None
        rope: Any = self.vit.rope
        grid = rope.get_embed()  # (…, N, D), sines and cosines
        if state is None or state.positions is None:
            return grid
        if self.vit.rope_mixed:
            return torch.stack([rotary(of_block, state) for of_block in grid])
        return rotary(grid, state)
