"""The model: one backbone for three modalities, PIFE, SDTPS, HDM and ATMoE, and a BNNeck head per feature (docs/method.md)."""
from collections.abc import Sequence

import torch
from timm.layers import QuickGELU
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError
from demo_sdtps.modeling.backbones import Backbone, make_backbone
from demo_sdtps.modeling.fusion import HDM, SUBSETS, ATMoE
from demo_sdtps.modeling.heads import BNNeck
from demo_sdtps.modeling.sdtps import MultiModalSDTPS

ENHANCED = ("sdtps", "moe")
"""Features that a module makes of the backbone's, in the order of training pairs and of return pattern 2."""

ByModality = dict[str, torch.Tensor]


class PIFE(nn.Module):
    """Mixes the mean of each modality's patch tokens into its global feature (docs/method.md)."""

    def __init__(self, width: int):
        super().__init__()
        self.reduce = nn.ModuleDict({
            modality: nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), QuickGELU())
            for modality in MODALITIES})

    def forward(self, patches: ByModality, class_tokens: ByModality) -> ByModality:
        """patches (B, N, C), class tokens (B, C) → globals (B, C), by modality."""
        return {modality: self.reduce[modality](torch.cat([class_tokens[modality], tokens.mean(dim=1)], dim=-1))
                for modality, tokens in patches.items()}


class DeMo(nn.Module):
    """Multi-modal re-identification from triplets of images.

    In training a forward returns the flat tuple (scores, feature, scores, feature, …), enhanced features first, and, with
    HDM, last its auxiliary loss, the number 0; in evaluation the feature of one return pattern. `pair_weights` weighs the
    losses of the pairs, `widths` are the widths of their features.
    """

    def __init__(self, cfg: CfgNode, num_class: int, camera_num: int):
        super().__init__()
        self.num_class, self.camera_num = num_class, camera_num
        self.missing, self.test_amp = missing_modalities(cfg.TEST.MISS), cfg.TEST.AMP
        self.after_neck = cfg.TEST.NECK_FEAT == "after"
        self.backbone = make_backbone(cfg, camera_num)
        width = self.backbone.width
        self.pife = PIFE(width) if cfg.MODEL.GLOBAL_LOCAL else None
        self.sdtps = _build_sdtps(cfg, self.backbone) if cfg.MODEL.USE_SDTPS else None
        self.hdm = HDM(width) if cfg.MODEL.HDM else None
        self.atmoe = ATMoE(width, cfg.MODEL.HEAD) if cfg.MODEL.ATM else None
        self.guide_missing = cfg.MODEL.SDTPS_GUIDE_MISSING
        self.one_head = cfg.MODEL.DIRECT == 1

        self.widths = {"sdtps": len(MODALITIES) * width} if self.sdtps else {}
        self.widths |= {"moe": len(SUBSETS) * width} if self.hdm else {}
        self.widths |= {"original": len(MODALITIES) * width} if self.one_head else dict.fromkeys(MODALITIES, width)
        self.heads = nn.ModuleDict({name: BNNeck(dim, num_class) for name, dim in self.widths.items()})
        self.pair_weights = {name: cfg.MODEL.SDTPS_LOSS_WEIGHT if name == "sdtps" else 1.0 for name in self.widths}
        if cfg.MODEL.FROZEN:
            self.backbone.vit.requires_grad_(False)

    def forward(self, images: ByModality, cam_label: torch.Tensor,
                return_pattern: int = 3) -> tuple[torch.Tensor, ...] | torch.Tensor:
        """images {modality: (B, 3, H, W)}, cam_label (B,) from 0 → pairs in training, (B, D) in evaluation."""
        if not self.training:
            return self.patterns(images, cam_label)[return_pattern]
        features = self.features(*self.encode(images, cam_label))
        pairs = tuple(part for name, feature in features.items() for part in (self.heads[name](feature), feature))
        return (*pairs, 0) if self.hdm else pairs

    def patterns(self, images: ByModality, cam_label: torch.Tensor) -> dict[int, torch.Tensor]:
        """All three return patterns from one pass: 1 original (B, 3C), 2 enhanced, 3 both."""
        return self.extract_features(images, cam_label, [self.missing])[0]

    def extract_features(self, images: ByModality, cam_label: torch.Tensor,
                          cases: Sequence[frozenset[str]]) -> list[dict[int, torch.Tensor]]:
        """The return patterns of several cases of missing modalities, whose images count as zeros."""
        return [self._patterns(*seen, case) for case, seen in zip(cases, self.encode_cases(images, cam_label, cases),
                                                                  strict=True)]

    def features(self, patches: ByModality, global_feats: ByModality,
                 missing: frozenset[str] = frozenset()) -> dict[str, torch.Tensor]:
        """The feature of every head by its name, before the BatchNorm, enhanced ones first; float32."""
        features = {}
        if self.sdtps:
            patches = self.select_tokens(patches, global_feats, missing)[0]  # HDM sees the slimmed tokens as well
            features["sdtps"] = torch.cat([tokens.mean(dim=1) for tokens in patches.values()], dim=-1)
        if self.hdm:
            decoupled = self.hdm(patches, global_feats)
            features["moe"] = self.atmoe(decoupled) if self.atmoe else decoupled.flatten(1)
        features |= {"original": torch.cat(list(global_feats.values()), dim=-1)} if self.one_head else global_feats
        return {name: feature.float() for name, feature in features.items()}

    def encode(self, images: ByModality, cam_label: torch.Tensor) -> tuple[ByModality, ByModality]:
        """Backbone and PIFE: images of some or all modalities → their patch tokens (B, N, C) and globals (B, C)."""
        images = {modality: images[modality] for modality in MODALITIES if modality in images}
        # One batch of 3B: the backbone does not know modalities.
        tokens = self.backbone(torch.cat(list(images.values())), cam_label.repeat(len(images)))
        patches, class_tokens = (dict(zip(images, part.chunk(len(images)), strict=True)) for part in tokens)
        return patches, self.pife(patches, class_tokens) if self.pife else class_tokens

    def encode_cases(self, images: ByModality, cam_label: torch.Tensor,
                     cases: Sequence[frozenset[str]]) -> list[tuple[ByModality, ByModality]]:
        """Patch tokens and globals in several cases of missing modalities, whose images count as zeros.

        Every image passes through the backbone once, whatever the number of cases, and a zero image once per camera: nothing
        before the enhancing modules mixes modalities.
        """
        present = {modality: image for modality, image in images.items() if any(modality not in case for case in cases)}
        seen = self.encode(present, cam_label)
        absent = frozenset().union(*cases)
        blank = self._encode_blank({m: image for m, image in images.items() if m in absent}, cam_label) if absent else seen
        return [tuple({modality: (empty if modality in case else full)[modality] for modality in MODALITIES}
                      for full, empty in zip(seen, blank, strict=True)) for case in cases]

    def select_tokens(self, patches: ByModality, global_feats: ByModality,
             missing: frozenset[str] = frozenset()) -> tuple[ByModality, ByModality]:
        """SDTPS: → slimmed tokens (B, N_c + 1, C) and decision masks (B, N), by modality.

        The globals of `missing` modalities guide the others where MODEL.SDTPS_GUIDE_MISSING says so.
        """
        unguided = frozenset() if self.guide_missing else missing
        outputs = self.sdtps(*(patches[modality] for modality in MODALITIES),
                             *(global_feats[modality] for modality in MODALITIES),
                             missing=tuple(modality in unguided for modality in MODALITIES))
        count = len(MODALITIES)
        return (dict(zip(MODALITIES, outputs[:count], strict=True)), dict(zip(MODALITIES, outputs[count:], strict=True)))

    def _encode_blank(self, images: ByModality, cam_label: torch.Tensor) -> tuple[ByModality, ByModality]:
        cameras, camera_of = cam_label.unique(return_inverse=True)
        blank = {modality: torch.zeros_like(image[:1]).expand(len(cameras), -1, -1, -1) for modality, image in images.items()}
        return tuple({modality: part[camera_of] for modality, part in tokens.items()}
                     for tokens in self.encode(blank, cameras))

    def _patterns(self, patches: ByModality, global_feats: ByModality, missing: frozenset[str]) -> dict[int, torch.Tensor]:
        features = self.features(patches, global_feats, missing)
        if self.after_neck:
            features = {name: self.heads[name].bottleneck(feature) for name, feature in features.items()}
        original = torch.cat([feature for name, feature in features.items() if name not in ENHANCED], dim=-1)
        enhanced = [features[name] for name in ENHANCED if name in features]
        by_pattern = (original, torch.cat(enhanced or [original], dim=-1), torch.cat([original, *enhanced], dim=-1))
        return dict(zip(RETURN_PATTERNS, by_pattern, strict=True))


def make_model(cfg: CfgNode, num_class: int, camera_num: int, view_num: int = 0) -> DeMo:
    """The model of a configuration, randomly initialised, for `num_class` training identities and `camera_num` cameras.

    `view_num` is DeMo's argument; the data sets have no views (config refuses MODEL.SIE_VIEW). Raises `UserError`.
    """
    return DeMo(cfg, num_class, camera_num)


def missing_modalities(text: str) -> frozenset[str]:
    """The modalities that a value of TEST.MISS names by their first letters. Raises `UserError` for 'all' of the cases."""
    if text == "all":
        raise UserError("TEST.MISS is 'all', which test_net.py alone understands; name one case such as 'rn', or 'nothing'.")
    if text in ("None", "nothing"):
        return frozenset()
    return frozenset(modality for modality in MODALITIES if modality[0].lower() in text)


def _build_sdtps(cfg: CfgNode, backbone: Backbone) -> MultiModalSDTPS:
    model = cfg.MODEL
    try:
        return MultiModalSDTPS(backbone.width, backbone.num_patches, model.SDTPS_SPARSE_RATIO, model.SDTPS_AGGR_RATIO,
                               model.SDTPS_USE_GUMBEL, model.SDTPS_GUMBEL_TAU, model.SDTPS_BETA,
                               gumbel_select=model.SDTPS_GUMBEL_SELECT)
    except ValueError as error:
        raise UserError(f"MODEL.SDTPS_SPARSE_RATIO and MODEL.SDTPS_AGGR_RATIO do not fit: {error}") from None
