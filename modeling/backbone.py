"""The backbone: one timm Vision Transformer that the three modalities share (docs/method.md)."""
import copy
from contextlib import nullcontext
from functools import partial

import timm
import torch
import torch.nn.functional as F
from timm.layers import Mlp, PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.common import CLIP_TRUNK

CLIP_IN_TIMM = "vit_base_patch16_clip_quickgelu_224"
CLIP_WIDTH = 512
"""Width of CLIP's joint space, which its projection maps every token to."""

QUICK_GELU = 1.702

VECTOR_BITS = {"AVX2": 256, "AVX512": 512}
"""Width of the vectors that torch computes with, by its name of what the CPU can; it chooses itself for any other."""

CHUNK = 32
"""Images that pass through the backbone together on a CPU where no gradient is wanted: what lies between two products then
stays in the cache, and memory does not grow with the batch."""


class StridedPatchEmbed(PatchEmbed):
    """timm's patch embedding with a stride of its own: below the patch size, patches overlap."""

    def __init__(self, *args, stride: tuple[int, int], **kwargs):
        super().__init__(*args, **kwargs)
        self.proj.stride = stride
        self.grid_size = tuple((side - patch) // step + 1
                               for side, patch, step in zip(self.img_size, self.patch_size, stride, strict=True))
        self.num_patches = self.grid_size[0] * self.grid_size[1]


class QuickGELUMlp(Mlp):
    """timm's MLP of a block with quick GELU, in fewer passes over its widest tensor.

    x·sigmoid(s·x) = silu(s·x) / s with s = 1.702: both factors go into the weights around it, which are smaller than the
    activations, so that one operation is left that keeps one tensor for its gradient, in place of three that keep two.
    """

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, N, C) → (B, N, C)."""
        hidden = F.silu(F.linear(tokens, QUICK_GELU * self.fc1.weight, QUICK_GELU * self.fc1.bias))
        return F.linear(hidden, self.fc2.weight / QUICK_GELU, self.fc2.bias)

    @torch.no_grad()
    def fold(self) -> nn.Sequential:
        """The same for inference, with the factors in this module's own weights for good: they are changed in place."""
        self.fc1.weight *= QUICK_GELU
        self.fc1.bias *= QUICK_GELU
        self.fc2.weight /= QUICK_GELU
        return nn.Sequential(self.fc1, nn.SiLU(inplace=True), self.fc2)


class Backbone(nn.Module):
    """A Vision Transformer with side information embedding (SIE): images and cameras to patch and class tokens.

    `width` is C, the width of the tokens that it returns; `num_patches` is N; `grid_size` is (rows, columns).

    Raises `UserError` where MODEL.TRANSFORMER_TYPE names a model without exactly a class token and a learned absolute
    position embedding that includes it, or where the image is smaller than a patch.
    """

    def __init__(self, cfg: CfgNode, camera_num: int):
        super().__init__()
        self.is_clip = cfg.MODEL.TRANSFORMER_TYPE == CLIP_TRUNK
        self.vit = _build_clip(cfg) if self.is_clip else _build_timm(cfg)
        self.width = CLIP_WIDTH if self.is_clip else self.vit.embed_dim
        self.grid_size = self.vit.patch_embed.grid_size
        self.num_patches = self.vit.patch_embed.num_patches
        self.fused_attention: bool | None = None
        """torch's fused attention or plain matrix products; None chooses by device and precision."""
        self.is_compiled = False
        self.precision: torch.dtype | None = None
        """What its products are computed in; None leaves that to autocast."""
        self.camera_weight = cfg.MODEL.SIE_COE
        self.camera_embedding = None
        # The published ImageNet backbone has no camera embedding for a single camera; CLIP's always has one.
        if cfg.MODEL.SIE_CAMERA and (self.is_clip or camera_num > 1):
            self.camera_embedding = nn.Parameter(torch.empty(camera_num, 1, self.vit.embed_dim))
            nn.init.trunc_normal_(self.camera_embedding, std=0.02)

    def forward(self, images: torch.Tensor, cameras: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """images (B, 3, H, W), cameras (B,) from 0 → patch tokens (B, N, C), class token (B, C)."""
        device = images.device.type
        with torch.autocast(device, dtype=self.precision) if self.precision else nullcontext():
            self._choose_attention(images.device)
            if torch.is_grad_enabled():
                tokens = self._tokens(images, cameras)
            else:
                chunk = CHUNK if device == "cpu" else len(images)
                parts = zip(images.split(chunk), cameras.split(chunk), strict=True)
                tokens = torch.cat([self._tokens(*part) for part in parts])
        if self.precision:
            tokens = tokens.to(images.dtype)
        return tokens[:, 1:], tokens[:, 0]

    def compile_blocks(self) -> None:
        """Compile the transformer's blocks, one for all, when they first run."""
        self.is_compiled = True
        # The compiler keeps its code on disk by everything but the width of the vectors that it was written for. Run by a
        # processor with narrower ones (a shared folder, ATEN_CPU_CAPABILITY) it would leave half of each result unset, with
        # wider ones write beyond it. An option is part of the key.
        width = VECTOR_BITS.get(torch.backends.cpu.get_cpu_capability())
        for block in self.vit.blocks:
            block.compile(options={"cpp.simdlen": width})

    def cast_for_inference(self, precision: torch.dtype) -> "Backbone":
        """A copy for inference whose products are of weights held in `precision`; its tokens are those of the images' type.

        Between the products tokens stay in float32, as under autocast: in bfloat16 throughout, mAP moved by 0.3 on the
        synthetic pedestrians, like this by less than 0.1. Compiled where this one is.
        """
        backbone = copy.deepcopy(self).requires_grad_(False)
        backbone.precision = None if precision is torch.float32 else precision  # which autocast is not for
        for block in backbone.vit.blocks if backbone.is_clip else ():
            block.mlp = block.mlp.fold()
        for module in backbone.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.to(precision)
        if self.is_compiled:  # a copy's blocks are not
            backbone.compile_blocks()
        return backbone

    def fuses_attention(self, device: torch.device, in_half: bool) -> bool:
        """Whether attention is torch's fused one, in half precision or not; `fused_attention` decides where it is not None.

        In bfloat16 on CPUs the fused one was several times slower for small backbones. Elsewhere it is the faster one, and it
        keeps no (N + 1)² weights for its gradient.
        """
        chosen = device.type != "cpu" or not in_half
        return chosen if self.fused_attention is None else self.fused_attention

    def _choose_attention(self, device: torch.device) -> None:
        in_half = torch.is_autocast_enabled(device.type)
        for module in self.vit.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = self.fuses_attention(device, in_half)

    def _tokens(self, images: torch.Tensor, cameras: torch.Tensor) -> torch.Tensor:
        """images (B, 3, H, W), cameras (B,) → class and patch tokens (B, 1 + N, C)."""
        vit = self.vit
        patches = vit.patch_embed(images)
        class_token = vit.cls_token.expand(len(images), -1, -1)
        if self.camera_embedding is not None:
            camera = self.camera_weight * self.camera_embedding[cameras]
            class_token = class_token + camera
            if not self.is_clip:
                patches = patches + camera
        tokens = vit.pos_drop(torch.cat([class_token, patches], dim=1) + vit.pos_embed)
        # timm's head is CLIP's projection, applied to every token, and the identity for other backbones.
        return vit.head(vit.norm(vit.blocks(vit.norm_pre(tokens))))


def _build_clip(cfg: CfgNode) -> VisionTransformer:
    vit = _create(cfg, CLIP_IN_TIMM, mlp_layer=QuickGELUMlp)
    vit.head = nn.Linear(vit.embed_dim, CLIP_WIDTH, bias=False)
    return vit


def _build_timm(cfg: CfgNode) -> VisionTransformer:
    model = cfg.MODEL
    patch_size = {"patch_size": model.PATCH_SIZE} if model.PATCH_SIZE else {}
    vit = _create(cfg, model.TRANSFORMER_TYPE, drop_path_rate=model.DROP_PATH, pos_drop_rate=model.DROP_OUT,
                  proj_drop_rate=model.DROP_OUT, attn_drop_rate=model.ATT_DROP_RATE, **patch_size)
    has_one_prefix_token = isinstance(vit, VisionTransformer) and vit.cls_token is not None \
        and vit.num_prefix_tokens == 1
    if not has_one_prefix_token or vit.pos_embed is None or vit.no_embed_class:
        raise _unfit(model.TRANSFORMER_TYPE)
    return vit


def _unfit(name: str) -> UserError:
    return UserError(f"MODEL.TRANSFORMER_TYPE is {name!r}, whose tokens are not exactly a class token and the patches with one "
                     "learned position each; choose another such as 'vit_base_patch16_224'.")


def _create(cfg: CfgNode, name: str, **kwargs) -> VisionTransformer:
    height, width = cfg.INPUT.SIZE_TRAIN
    try:
        vit = timm.create_model(
            name, pretrained=False, num_classes=0, global_pool="", img_size=(height, width), dynamic_img_size=False,
            embed_layer=partial(StridedPatchEmbed, stride=tuple(cfg.MODEL.STRIDE_SIZE)), **kwargs)
    except (AssertionError, TypeError) as error:  # a variant that asks for other arguments than a plain one
        raise _unfit(name) from error
    patch = vit.patch_embed.patch_size
    if min(vit.patch_embed.grid_size) < 1:
        raise UserError(f"INPUT.SIZE_TRAIN is {[height, width]}, smaller than one patch of {name} ({patch[0]}×{patch[1]}); "
                        "make the images larger.")
    if any(step > side for step, side in zip(cfg.MODEL.STRIDE_SIZE, patch, strict=True)):
        raise UserError(f"MODEL.STRIDE_SIZE is {list(cfg.MODEL.STRIDE_SIZE)}, larger than the patch of {name} "
                        f"({patch[0]}×{patch[1]}), so part of the image would not be seen; lower it.")
    return vit
