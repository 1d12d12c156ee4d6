"""DeMo in miniature: its attributes, its forward written twice, its outputs; without SDTPS."""

import copy

import torch
import torch.nn as nn
from fvcore.nn import flop_count

from modeling.backbone import SIZES, Backbone
from modeling.fusion import GeneralFusion, QuickGELU

MISSING = ("r", "n", "t", "rn", "rt", "nt")


class DeMo(nn.Module):
    def __init__(self, num_classes, cfg, camera_num, view_num, factory):
        super().__init__()
        self.feat_dim = SIZES[cfg.MODEL.TRANSFORMER_TYPE][0]
        self.BACKBONE = Backbone(cfg, camera_num)
        self.num_classes = num_classes
        self.image_size = cfg.INPUT.SIZE_TRAIN
        self.direct = cfg.MODEL.DIRECT
        self.miss_type = cfg.TEST.MISS
        self.HDM = cfg.MODEL.HDM
        self.ATM = cfg.MODEL.ATM
        self.GLOBAL_LOCAL = cfg.MODEL.GLOBAL_LOCAL
        if self.GLOBAL_LOCAL:
            self.pool = nn.AdaptiveAvgPool1d(1)
            self.rgb_reduce = self.make_reduce()
            self.nir_reduce = self.make_reduce()
            self.tir_reduce = self.make_reduce()
        if self.HDM or self.ATM:
            self.generalFusion = GeneralFusion(self.feat_dim, cfg)
            self.add_head("_moe", 7 * self.feat_dim)
        if self.direct:
            self.add_head("", 3 * self.feat_dim)
        else:
            for suffix in ("_r", "_n", "_t"):
                self.add_head(suffix, self.feat_dim)

    def make_reduce(self):
        width = self.feat_dim
        return nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), QuickGELU())

    def add_head(self, suffix, width):
        bottleneck = nn.BatchNorm1d(width)
        bottleneck.bias.requires_grad_(False)
        classifier = nn.Linear(width, self.num_classes, bias=False)
        nn.init.normal_(classifier.weight, std=0.001)
        setattr(self, f"bottleneck{suffix}", bottleneck)
        setattr(self, f"classifier{suffix}", classifier)

    def forward(
        self, x, label=None, cam_label=None, view_label=None, return_pattern=3, img_path=None
    ):
        if self.training:
            RGB_cash, RGB_global = self.BACKBONE(
                x["RGB"], cam_label=cam_label, view_label=view_label
            )
            NI_cash, NI_global = self.BACKBONE(x["NI"], cam_label=cam_label, view_label=view_label)
            TI_cash, TI_global = self.BACKBONE(x["TI"], cam_label=cam_label, view_label=view_label)
            if self.GLOBAL_LOCAL:
                RGB_global = self.rgb_reduce(
                    torch.cat([RGB_global, self.pool(RGB_cash.mT).squeeze(-1)], dim=-1)
                )
                NI_global = self.nir_reduce(
                    torch.cat([NI_global, self.pool(NI_cash.mT).squeeze(-1)], dim=-1)
                )
                TI_global = self.tir_reduce(
                    torch.cat([TI_global, self.pool(TI_cash.mT).squeeze(-1)], dim=-1)
                )
            if self.HDM or self.ATM:
                moe_feat, loss_moe = self.generalFusion(
                    RGB_cash, NI_cash, TI_cash, RGB_global, NI_global, TI_global
                )
                moe_score = self.classifier_moe(self.bottleneck_moe(moe_feat))
            if self.direct:
                ori = torch.cat([RGB_global, NI_global, TI_global], dim=-1)
                ori_score = self.classifier(self.bottleneck(ori))
                if self.HDM or self.ATM:
                    return moe_score, moe_feat, ori_score, ori, loss_moe
                return ori_score, ori
            RGB_score = self.classifier_r(self.bottleneck_r(RGB_global))
            NI_score = self.classifier_n(self.bottleneck_n(NI_global))
            TI_score = self.classifier_t(self.bottleneck_t(TI_global))
            if self.HDM or self.ATM:
                return (
                    moe_score,
                    moe_feat,
                    RGB_score,
                    RGB_global,
                    NI_score,
                    NI_global,
                    TI_score,
                    TI_global,
                    loss_moe,
                )
            return RGB_score, RGB_global, NI_score, NI_global, TI_score, TI_global
        else:
            missing = self.miss_type if self.miss_type in MISSING else ""
            x = {
                **x,
                **{
                    name: torch.zeros_like(x[name])
                    for name in ("RGB", "NI", "TI")
                    if name[0].lower() in missing
                },
            }
            cam_label = x.get("cam_label", cam_label)
            RGB_cash, RGB_global = self.BACKBONE(
                x["RGB"], cam_label=cam_label, view_label=view_label
            )
            NI_cash, NI_global = self.BACKBONE(x["NI"], cam_label=cam_label, view_label=view_label)
            TI_cash, TI_global = self.BACKBONE(x["TI"], cam_label=cam_label, view_label=view_label)
            if self.GLOBAL_LOCAL:
                RGB_global = self.rgb_reduce(
                    torch.cat([RGB_global, self.pool(RGB_cash.mT).squeeze(-1)], dim=-1)
                )
                NI_global = self.nir_reduce(
                    torch.cat([NI_global, self.pool(NI_cash.mT).squeeze(-1)], dim=-1)
                )
                TI_global = self.tir_reduce(
                    torch.cat([TI_global, self.pool(TI_cash.mT).squeeze(-1)], dim=-1)
                )
            ori = torch.cat([RGB_global, NI_global, TI_global], dim=-1)
            if not (self.HDM or self.ATM):
                return ori
            moe_feat = self.generalFusion(
                RGB_cash, NI_cash, TI_cash, RGB_global, NI_global, TI_global
            )
            return {1: ori, 2: moe_feat}.get(return_pattern, torch.cat([ori, moe_feat], dim=-1))

    def load_param(self, trained_path):
        self.load_state_dict(
            torch.load(trained_path, map_location="cpu", weights_only=True), strict=False
        )

    def flops(self):
        """Multiply-accumulates of one triplet in evaluation, and the operators that fvcore has no rule for."""
        supported_ops = dict.fromkeys(
            f"aten::{name}"
            for name in (
                "adaptive_avg_pool1d",
                "add",
                "baddbmm",
                "div",
                "gelu",
                "mT",
                "mean",
                "mul",
                "pow",
                "scaled_dot_product_attention",
                "sigmoid",
                "softmax",
                "stack",
                "unflatten",
            )
        )
        images = {modality: torch.zeros(1, 3, *self.image_size) for modality in ("RGB", "NI", "TI")}
        counts, unsupported = flop_count(copy.deepcopy(self).eval(), (images,), supported_ops)
        return sum(counts.values()), dict(unsupported)


def make_model(cfg, num_class, camera_num, view_num=0):
    return DeMo(num_class, cfg, camera_num, view_num, {})
