"""Backbones: CLIP's image encoder, timm's VisionTransformer and Eva with a class token (ImageNet's ViT, DeiT, DINOv2, EVA-02,
DINOv3, with or without registers), and what they share: camera embedding, precision, attention kernel, compilation, chunks
(docs/method.md)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import Mlp, PatchEmbed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config.common import CLIP_BACKBONE
from demo_sdtps.runtime.errors import UserError, nearest_name
from vit_slim.stage import State

Transformer = VisionTransformer | Eva

CHUNK = 32
"""Images per pass of the backbone on a CPU without gradients: activations stay in the cache, memory is bounded."""

NAME_IN_TIMM = "vit_base_patch16_clip_quickgelu_224"
CLIP_WIDTH = 512  # width of CLIP's joint space, to which its projection maps every token

QUICK_GELU = 1.702


def prefix_tokens(vit: Transformer) -> list[nn.Parameter]:
    """Class token (1, 1, C) and, where there are any, registers (1, R, C)."""
    return [token for token in (vit.cls_token, vit.reg_token) if token is not None]


class StridedPatchEmbed(PatchEmbed):
    """timm's patch embedding with a stride of its own: below the patch size, patches overlap."""

    def __init__(self, *args, stride: tuple[int, int], **kwargs):
        super().__init__(*args, **kwargs)
        set_grid(self, self.img_size, stride)


def set_grid(embed: PatchEmbed, size: tuple[int, int], stride: tuple[int, int]) -> None:
    """Change the image size and the step between patches, in pixels (vertical, horizontal), in place. Raises `UserError` for an
    image smaller than a patch."""
    embed.img_size, embed.proj.stride = size, stride
    sides = zip(size, embed.patch_size, stride, strict=True)
    rows, columns = ((side - patch) // step + 1 for side, patch, step in sides)
    if min(rows, columns) < 1:
        raise UserError(
            f"INPUT.SIZE_TRAIN is {list(size)}, smaller than one patch; make the images larger."
        )
    embed.grid_size, embed.num_patches = (rows, columns), rows * columns


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
    """The timm model `name` without pooling and classifier. Raises `UserError` for another layout of the tokens."""
    options: dict[str, Any] = {"num_classes": 0, "global_pool": "", "dynamic_img_size": False}
    with suppress(AssertionError, TypeError):  # of a variant that takes other arguments
        vit = timm.create_model(name, pretrained=False, **options, **kwargs)
        positions = (getattr(vit, name, None) for name in ("pos_embed", "rope"))
        if (
            isinstance(vit, Transformer)
            and vit.cls_token is not None
            and any(each is not None for each in positions)
            and vit.num_prefix_tokens == sum(token.shape[1] for token in prefix_tokens(vit))
        ):
            return vit
    raise UserError(
        f"MODEL.TRANSFORMER_TYPE is {name!r}, whose tokens are not a class token, registers or none, and patches "
        "with a position embedding; choose another, such as 'vit_base_patch16_224', 'vit_base_patch14_dinov2', "
        "'vit_base_patch14_reg4_dinov2', 'eva02_base_patch14_224' or 'vit_base_patch16_dinov3'."
    )


class Backbone(nn.Module):
    """A Vision Transformer with side information embedding (SIE): images and cameras to patch and class tokens.

    `width` is C, the width of the returned tokens; `num_patches` is N; `grid_size` is (rows, columns).

    `build` makes `vit`, a timm model with `patch_embed`, `blocks`, `head`, `embed_dim` and `num_prefix_tokens`, for
    INPUT.SIZE_TRAIN and MODEL.STRIDE_SIZE; a subclass overrides what its architecture does otherwise. Register tokens follow
    the class token and are not returned.
    """

    min_cameras = 2  # fewest cameras with a camera embedding: the published ImageNet backbone has none for a single camera
    has_new_camera_embedding = False  # whether it trains at the rate of new layers
    camera_on_patches = True  # whether it is added to the patches too, not to the class token alone

    def __init__(self, cfg: CfgNode, camera_num: int):
        super().__init__()
        self.vit = self.build(cfg)
        head = self.vit.head
        self.width = head.out_features if isinstance(head, nn.Linear) else self.vit.embed_dim
        self.grid_size: tuple[int, int] = self.vit.patch_embed.grid_size
        self.num_patches: int = self.vit.patch_embed.num_patches
        self.fused_attention: bool | None = None
        """True: torch's fused attention; False: plain matrix products; None: chosen by device and precision."""
        self.is_compiled = False
        self.precision: torch.dtype | None = None  # of matrix products; None leaves it to autocast
        self.camera_weight, self.share_unknown = cfg.MODEL.SIE_COE, cfg.MODEL.SIE_UNKNOWN
        self.camera_embedding = None
        if cfg.MODEL.SIE_CAMERA and camera_num >= self.min_cameras:
            self.camera_embedding = nn.Parameter(torch.empty(camera_num, 1, self.vit.embed_dim))
            nn.init.trunc_normal_(self.camera_embedding, std=0.02)

    @property
    def cameras(self) -> int:
        """Number of cameras with an embedding, 0 without; as an index, any other camera."""
        return 0 if self.camera_embedding is None else len(self.camera_embedding)

    def build(self, cfg: CfgNode) -> Transformer:
        """The timm model, randomly initialised. Raises `UserError` where the configuration does not fit."""
        return self._create(cfg, cfg.MODEL.TRANSFORMER_TYPE, **regularisation(cfg))

    def _create(self, cfg: CfgNode, name: str, **kwargs) -> Transformer:
        embed = partial(StridedPatchEmbed, stride=tuple(cfg.MODEL.STRIDE_SIZE))
        return create(name, img_size=tuple(cfg.INPUT.SIZE_TRAIN), embed_layer=embed, **kwargs)

    def embed(self, images: torch.Tensor, cameras: torch.Tensor) -> torch.Tensor:
        """images (B, 3, H, W), cameras (B,) → the first block's input (B, P + N, C)."""
        vit = self.vit
        patches = vit.patch_embed(images)
        tokens = [token.expand(images.shape[0], -1, -1) for token in prefix_tokens(vit)]
        prefix = torch.cat(tokens, dim=1)
        if self.camera_embedding is not None:
            known: torch.Tensor = self.camera_embedding
            # one more, the last, stands for any other camera, of whatever number
            known = torch.cat([known, known.mean(dim=0, keepdim=True)])
            cameras = cameras.clamp(max=self.cameras)
            if self.training and self.share_unknown:
                is_unknown = torch.rand((), device=cameras.device) < self.share_unknown
                cameras = cameras.masked_fill(is_unknown, self.cameras)
            camera = self.camera_weight * known[cameras]  # (B, 1, C)
            prefix = prefix + camera
            patches = patches + camera if self.camera_on_patches else patches
        if vit.pos_embed is not None and vit.no_embed_class:
            patches = patches + vit.pos_embed
        whole = torch.cat([prefix, patches], dim=1)
        if vit.pos_embed is not None and not vit.no_embed_class:
            whole = whole + vit.pos_embed
        return vit.norm_pre(vit.pos_drop(whole))

    def run_blocks(
        self, values: torch.Tensor, state: State | None, start: int, stop: int
    ) -> torch.Tensor:
        """Tokens (B, L, C) after the blocks from `start` to `stop`, without `stop`; `state` is slimming's, None for none."""
        arguments = self.block_arguments()
        for index in range(start, stop):
            more = state.arguments(values, arguments[index]) if state else arguments[index]
            values = self.vit.blocks[index](values, **more)
        return values

    def finish(self, values: torch.Tensor) -> torch.Tensor:
        """The last block's output (B, L, C) → final norm and projection (B, L, width)."""
        # The head is CLIP's projection, applied to every token, and the identity of other backbones.
        return self.vit.head(self.vit.norm(values))

    def block_arguments(self) -> Sequence[dict[str, Any]]:
        """Keyword arguments of the forward of each block beside the tokens, for the whole grid."""
        return [{}] * len(self.vit.blocks)

    def learning_rate(self, base_lr: float) -> float:
        """Learning rate of the backbone's parameters where that of new layers is `base_lr` (SOLVER.BASE_LR)."""
        return 0.8 * base_lr

    def forward(
        self, images: torch.Tensor, cameras: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """images (B, 3, H, W), cameras (B,) from 0 → patch tokens (B, N, C), class token (B, C)."""
        tokens = self.stem(images, cameras)
        if self.precision:
            tokens = tokens.to(images.dtype)
        return tokens[:, self.vit.num_prefix_tokens :], tokens[:, 0]

    def stem(
        self, images: torch.Tensor, cameras: torch.Tensor, stop: int | None = None
    ) -> torch.Tensor:
        """images (B, 3, H, W), cameras (B,) → tokens after the first `stop` blocks, (B, P + N, C); where it is None, after all,
        final norm and projection, (B, P + N, width)."""
        depth, outputs = len(self.vit.blocks) if stop is None else stop, []
        with self.ready(images.device):
            for chunk in zip(*self.chunks(images, cameras), strict=True):
                values = self.run_blocks(self.embed(*chunk), None, 0, depth)
                outputs.append(self.finish(values) if stop is None else values)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @contextmanager
    def ready(self, device: torch.device) -> Iterator[None]:
        """Run blocks in the precision of this backbone, by torch's fused kernel or, as `fused_attention` says, plain products.

        On CPUs in bfloat16 the fused kernel is several times slower for small backbones. Elsewhere it is faster, and stores no
        (N + 1)² weights for the backward pass.
        """
        with torch.autocast(device.type, dtype=self.precision) if self.precision else nullcontext():
            fused = self.fused_attention
            if fused is None:
                fused = device.type != "cpu" or not torch.is_autocast_enabled(device.type)
            for module in self.vit.modules():
                if "fused_attn" in vars(module):
                    vars(module)["fused_attn"] = fused
            yield

    @staticmethod
    def chunks(*tensors: torch.Tensor, images_each: int = 1) -> list[tuple[torch.Tensor, ...]]:
        """Tensors (B, …) of `images_each` images a row, in chunks that pass through the backbone at once."""
        # An exported graph has no loop over the batch, whose size it does not know.
        is_whole = torch.is_grad_enabled() or torch.compiler.is_exporting()
        if is_whole or tensors[0].device.type != "cpu":
            return [(tensor,) for tensor in tensors]
        return [tensor.split(max(1, CHUNK // images_each)) for tensor in tensors]

    def compile_blocks(self) -> None:
        """Compile the transformer's blocks at their first run; they share the compiled code."""
        self.is_compiled = True
        for block in self.vit.blocks:
            block.compile()


class EvaViT(Backbone):
    """As `Backbone`, with timm's rotary embedding of rows and columns in every block, with learned positions or without."""

    vit: Eva

    def build(self, cfg: CfgNode) -> Eva:
        vit = create(cfg.MODEL.TRANSFORMER_TYPE, **regularisation(cfg))
        assert isinstance(vit, Eva)
        # Eva takes no other class of patch embedding, so that what depends on the grid is replaced after construction.
        embed, patches = vit.patch_embed, vit.patch_embed.num_patches
        set_grid(embed, tuple(cfg.INPUT.SIZE_TRAIN), tuple(cfg.MODEL.STRIDE_SIZE))
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


class QuickGELUMlp(Mlp):
    """timm's MLP of a block with quick GELU, with fewer passes over the hidden activations. x·sigmoid(s·x) = silu(s·x) / s with
    s = 1.702. Both factors multiply the weights, or are factors of the matrix products, so that one elementwise operation is
    left that stores one tensor for the backward pass, in place of three that store two."""

    is_folded = False  # whether the weights have the factors now

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, N, C) → (B, N, C)."""
        (first, bias), (last, last_bias) = self.fc1.parameters(), self.fc2.parameters()
        if self.is_folded:
            hidden = F.silu(F.linear(tokens, first, bias), inplace=not torch.is_grad_enabled())
            return F.linear(hidden, last, last_bias)
        if torch.is_grad_enabled() or torch.compiler.is_exporting():
            # Weights are smaller than the gradients that a product with a factor multiplies, and constant in a file.
            hidden = F.silu(F.linear(tokens, QUICK_GELU * first, QUICK_GELU * bias))
            return F.linear(hidden, last / QUICK_GELU, last_bias)
        hidden = torch.addmm(QUICK_GELU * bias, tokens.flatten(0, 1), first.t(), alpha=QUICK_GELU)
        F.silu(hidden, inplace=True)
        return torch.addmm(last_bias, hidden, last.t(), alpha=1 / QUICK_GELU).view_as(tokens)

    @torch.no_grad()
    def fold(self) -> None:
        """Multiply the weights by the factors, in place, for half precision, whose products with a factor are slower."""
        for parameter in self.fc1.parameters():
            parameter.mul_(QUICK_GELU)
        self.fc2.weight /= QUICK_GELU
        self.is_folded = True


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


TIMM_MODULES = {"vision_transformer": Backbone, "deit": Backbone, "eva": EvaViT}
"""By the module of timm that defines a model."""


def make_backbone(cfg: CfgNode, camera_num: int) -> Backbone:
    """The backbone of MODEL.TRANSFORMER_TYPE, randomly initialised. Raises `UserError` for another name."""
    name = cfg.MODEL.TRANSFORMER_TYPE
    if name == CLIP_BACKBONE:
        return CLIP(cfg, camera_num)
    for module, kind in TIMM_MODULES.items():
        if name in timm.list_models(name, module=module):  # a list of all takes milliseconds
            return kind(cfg, camera_num)
    known = [CLIP_BACKBONE, *timm.list_models(module=list(TIMM_MODULES))]
    raise UserError(
        f"MODEL.TRANSFORMER_TYPE is {name!r}, but it must be {CLIP_BACKBONE!r} or a VisionTransformer or Eva "
        f"of timm such as 'vit_base_patch16_224'{nearest_name(name, known)}."
    )
