"""A small image tower in place of CLIP's, under its weight names and with its layout: blocks see (tokens, batch, width)."""

from collections import OrderedDict

import torch
from torch import nn

from modeling.fusion import QuickGELU

PATCH = 16


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(
                c_fc=nn.Linear(width, 4 * width),
                gelu=QuickGELU(),
                c_proj=nn.Linear(4 * width, width),
            )
        )
        self.ln_2 = nn.LayerNorm(width)

    def forward(
        self, x, modality=None, index=None, last_prompt=None, prompt_sign=True, adapter_sign=True
    ):
        assert not prompt_sign and not adapter_sign
        seen = self.ln_1(x)
        x = x + self.attn(seen, seen, seen, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.resblocks = nn.Sequential(
            *(ResidualAttentionBlock(width, heads) for _ in range(layers))
        )


class Tower(nn.Module):
    def __init__(self, cfg, width, layers, heads):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, PATCH, cfg.MODEL.STRIDE_SIZE, bias=False)
        rows, columns = (
            side // step
            for side, step in zip(cfg.INPUT.SIZE_TRAIN, cfg.MODEL.STRIDE_SIZE, strict=True)
        )
        self.class_embedding = nn.Parameter(0.1 * torch.randn(width))
        self.positional_embedding = nn.Parameter(0.1 * torch.randn(rows * columns + 1, width))
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Transformer(width, layers, heads)
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(width**-0.5 * torch.randn(width, width))

    def forward(self, x, cv_emb=None, modality=None):
        x = self.conv1(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_embedding + torch.zeros_like(x[:, :1]), x], dim=1)
        if cv_emb is not None:
            x[:, 0] = x[:, 0] + cv_emb.squeeze(1)
        x = self.ln_pre(x + self.positional_embedding).permute(1, 0, 2)
        for index in range(len(self.transformer.resblocks)):
            x = self.transformer.resblocks[index](
                x, modality, index, None, prompt_sign=False, adapter_sign=False
            )
        return self.ln_post(x.permute(1, 0, 2)) @ self.proj
