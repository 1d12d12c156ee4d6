"""Configurations of backbones that several tests build."""

import torch
from tiny import CONFIG, sums_of_a_backbone

from demo_sdtps.config import load_cfg

DINOV2, REGISTERS = "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2"


EVA02, DINOV3 = "eva02_tiny_patch14_224", "vit_tiny_patch16_dinov3_qkvb"


MIXED = "vit_small_patch16_rope_mixed_ape_224"
"""Rotary frequencies that are learned for every block, and positions of the patches alone."""


def patch_side(name):
    return 14 if "patch14" in name else 16


def backbone_cfg(name, *opts, stride=None):
    """Images of 3 rows and 2 columns of patches that do not overlap."""
    side = patch_side(name)
    size, stride = [3 * side, 2 * side], stride or [side, side]
    return load_cfg(
        CONFIG,
        [
            "MODEL.TRANSFORMER_TYPE",
            name,
            "MODEL.PATCH_SIZE",
            "0",
            "MODEL.STRIDE_SIZE",
            str(list(stride)),
            "MODEL.DROP_PATH",
            "0",
            *(word for split in ("TRAIN", "TEST") for word in (f"INPUT.SIZE_{split}", str(size))),
            *opts,
        ],
    )


def disturb(module):
    """Make all parameters random: layer scales, registers and biases start near 0 and would hide a mistake."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def path_lengths(backbone):
    """Lengths of the sums from images to tokens."""
    vit = backbone.vit
    tokens = vit.num_prefix_tokens + backbone.num_patches
    return sums_of_a_backbone(
        vit.embed_dim,
        vit.blocks[0].attn.num_heads,
        tokens,
        len(vit.blocks),
        vit.patch_embed.patch_size[0],
    )
