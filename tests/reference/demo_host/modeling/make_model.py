"""DeMo in miniature: its attributes, its outputs and the names of its weights, with a small tower of CLIP's; without SDTPS."""

import torch
from torch import nn

from demo_sdtps.config import MODALITIES
from tests.reference import demo
from tests.reference.fusion import Fusion, QuickGELU

MISSING = ("r", "n", "t", "rn", "rt", "nt")
REDUCES = {"RGB": "rgb_reduce", "NI": "nir_reduce", "TI": "tir_reduce"}
WIDTH = 64
TOWER = {"width": WIDTH, "out_width": WIDTH, "depth": 4, "heads": 2}


class Backbone(demo.Backbone):
    def forward(self, images, cam_label=None, view_label=None):
        return super().forward(images, cam_label)


class GeneralFusion(Fusion):
    """(feature, loss) in training, the feature alone in evaluation."""

    def __init__(self, cfg):
        super().__init__(WIDTH, cfg.MODEL.HEAD if cfg.MODEL.ATM else None)
        self.HDM, self.ATM = cfg.MODEL.HDM, cfg.MODEL.ATM

    def forward(self, RGB_cash, NI_cash, TI_cash, RGB_global, NI_global, TI_global):
        tokens = ((RGB_cash, NI_cash, TI_cash), (RGB_global, NI_global, TI_global))
        feature = super().forward(*(dict(zip(MODALITIES, side, strict=True)) for side in tokens))
        return (feature, 0) if self.training else feature


class DeMo(nn.Module):
    def __init__(self, num_classes, cfg, camera_num):
        super().__init__()
        self.feat_dim, self.num_classes = WIDTH, num_classes
        self.direct, self.miss_type = cfg.MODEL.DIRECT, cfg.TEST.MISS
        self.HDM, self.ATM = cfg.MODEL.HDM, cfg.MODEL.ATM
        self.GLOBAL_LOCAL = cfg.MODEL.GLOBAL_LOCAL
        self.BACKBONE = Backbone(
            cfg.INPUT.SIZE_TRAIN, camera_num, 1.0, **TOWER, stride=cfg.MODEL.STRIDE_SIZE
        )
        for name in REDUCES.values() if self.GLOBAL_LOCAL else ():
            layers = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), QuickGELU()
            self.add_module(name, nn.Sequential(*layers))
        if self.HDM or self.ATM:
            self.generalFusion = GeneralFusion(cfg)
            self.add_head("_moe", 7 * WIDTH)
        for suffix in ("",) if self.direct else ("_r", "_n", "_t"):
            self.add_head(suffix, 3 * WIDTH if self.direct else WIDTH)

    def add_head(self, suffix, width):
        bottleneck = nn.BatchNorm1d(width)
        bottleneck.bias.requires_grad_(False)
        self.add_module(f"bottleneck{suffix}", bottleneck)
        self.add_module(f"classifier{suffix}", nn.Linear(width, self.num_classes, bias=False))

    def pair(self, suffix, feature):
        normed = self.get_submodule(f"bottleneck{suffix}")(feature)
        return self.get_submodule(f"classifier{suffix}")(normed), feature

    def forward(
        self, x, label=None, cam_label=None, view_label=None, return_pattern=3, img_path=None
    ):
        missing = self.miss_type if self.miss_type in MISSING and not self.training else ""
        patches, global_feats = {}, {}
        for name, reduce in REDUCES.items():
            image = torch.zeros_like(x[name]) if name[0].lower() in missing else x[name]
            patches[name], feature = self.BACKBONE(
                image, cam_label=cam_label, view_label=view_label
            )
            if self.GLOBAL_LOCAL:
                mixed = torch.cat([feature, patches[name].mean(dim=1)], dim=-1)
                feature = self.get_submodule(reduce)(mixed)
            global_feats[name] = feature
        original = torch.cat(list(global_feats.values()), dim=-1)
        fused = (
            self.generalFusion(*patches.values(), *global_feats.values())
            if self.HDM or self.ATM
            else None
        )
        if not self.training:
            if fused is None or return_pattern == 1:
                return original
            return fused if return_pattern == 2 else torch.cat([original, fused], dim=-1)
        heads = (
            {"": original}
            if self.direct
            else dict(zip(("_r", "_n", "_t"), global_feats.values(), strict=True))
        )
        outputs = [output for head in heads.items() for output in self.pair(*head)]
        return (*self.pair("_moe", fused[0]), *outputs, fused[1]) if fused else tuple(outputs)

    def load_param(self, trained_path):
        self.load_state_dict(
            torch.load(trained_path, map_location="cpu", weights_only=True), strict=False
        )


def make_model(cfg, num_class, camera_num, view_num=0):
    return DeMo(num_class, cfg, camera_num)
