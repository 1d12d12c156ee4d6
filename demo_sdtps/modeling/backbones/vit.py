"""timm's VisionTransformer and Eva with a class token: ImageNet's ViT, DeiT, DINOv2, EVA-02, DINOv3, with registers or without
(docs/method.md)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import timm
import torch
from timm.layers import PatchEmbed
from timm.models.eva import Eva
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.modeling.backbones.base import Backbone, Transformer, prefix_tokens


class StridedPatchEmbed(PatchEmbed):
    """timm's patch embedding with a stride of its own: below the patch size, patches overlap."""

    def __init__(self, *args, stride: tuple[int, int], **kwargs):
        super().__init__(*args, **kwargs)
        set_grid(self, self.img_size, stride)


def set_grid(embed: PatchEmbed, size: tuple[int, int], stride: tuple[int, int]) -> None:
    """Change the image size and the step between patches, in pixels (vertical, horizontal), in place."""
    embed.img_size, embed.proj.stride = size, stride
    sides = zip(size, embed.patch_size, stride, strict=True)
    rows, columns = ((side - patch) // step + 1 for side, patch, step in sides)
    embed.grid_size, embed.num_patches = (rows, columns), rows * columns


class ViT(Backbone):
    """A model of timm's as it is, for INPUT.SIZE_TRAIN and MODEL.STRIDE_SIZE."""

    def build(self, cfg: CfgNode) -> Transformer:
        return self._create(cfg, cfg.MODEL.TRANSFORMER_TYPE, **regularisation(cfg))

    def _create(self, cfg: CfgNode, name: str, **kwargs) -> Transformer:
        embed = partial(StridedPatchEmbed, stride=tuple(cfg.MODEL.STRIDE_SIZE))
        vit = create(name, img_size=tuple(cfg.INPUT.SIZE_TRAIN), embed_layer=embed, **kwargs)
        check_grid(cfg, vit)
        return vit


def regularisation(cfg: CfgNode) -> dict[str, object]:
    """timm's arguments for dropout and stochastic depth, and for MODEL.PATCH_SIZE and DEPTH where they are given."""
    model = cfg.MODEL
    return {
        "drop_path_rate": model.DROP_PATH,
        "pos_drop_rate": model.DROP_OUT,
        "proj_drop_rate": model.DROP_OUT,
        "attn_drop_rate": model.ATT_DROP_RATE,
        **({"patch_size": model.PATCH_SIZE} if model.PATCH_SIZE else {}),
        **({"depth": model.DEPTH} if model.DEPTH else {}),
    }


def create(name: str, **kwargs) -> Transformer:
    """The timm model `name` without pooling and classifier."""
    try:
        vit = timm.create_model(
            name, pretrained=False, num_classes=0, global_pool="", dynamic_img_size=False, **kwargs
        )
    except (AssertionError, TypeError) as error:  # a variant that takes other arguments
        raise _unfit(name) from error
    has_positions = any(getattr(vit, name, None) is not None for name in ("pos_embed", "rope"))
    if (
        not isinstance(vit, Transformer)
        or vit.cls_token is None
        or not has_positions
        or vit.num_prefix_tokens != sum(token.shape[1] for token in prefix_tokens(vit))
    ):
        raise _unfit(name)
    return vit


def check_grid(cfg: CfgNode, vit: Transformer) -> None:
    """Raise `UserError` for an image smaller than a patch, and for a stride larger than one."""
    name, patch = cfg.MODEL.TRANSFORMER_TYPE, vit.patch_embed.patch_size
    if min(vit.patch_embed.grid_size) < 1:
        raise UserError(
            f"INPUT.SIZE_TRAIN is {list(cfg.INPUT.SIZE_TRAIN)}, smaller than one patch of {name} "
            f"({patch[0]}×{patch[1]}); make the images larger."
        )
    if any(step > side for step, side in zip(cfg.MODEL.STRIDE_SIZE, patch, strict=True)):
        raise UserError(
            f"MODEL.STRIDE_SIZE is {list(cfg.MODEL.STRIDE_SIZE)}, larger than the patch of {name} "
            f"({patch[0]}×{patch[1]}), so part of the image would not be seen; lower it."
        )


def _unfit(name: str) -> UserError:
    return UserError(
        f"MODEL.TRANSFORMER_TYPE is {name!r}, whose tokens are not a class token, registers or none, and patches "
        "with a position embedding; choose another, such as 'vit_base_patch16_224', 'vit_base_patch14_dinov2', "
        "'vit_base_patch14_reg4_dinov2', 'eva02_base_patch14_224' or 'vit_base_patch16_dinov3'."
    )


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
