"""timm's VisionTransformer with a class token: ImageNet's ViT, DeiT, DINOv2, with registers or without (docs/method.md)."""

from functools import partial

import timm
from timm.layers import PatchEmbed
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
