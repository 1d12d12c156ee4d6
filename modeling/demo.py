"""The model: one trunk for three modalities, PIFE, SDTPS, and a BNNeck head per feature (spec 2 to 6)."""
import torch
from timm.layers import QuickGELU
from torch import nn
from yacs.config import CfgNode

from config import MODALITIES, RETURN_PATTERNS, UserError
from modeling.heads import BNNeck
from modeling.sdtps import MultiModalSDTPS
from modeling.trunk import Trunk

ENHANCED = ("sdtps", "moe")
"""Features that a module makes of the trunk's, in the order of training pairs and of return pattern 2."""


class PIFE(nn.Module):
    """Mixes the mean of each modality's patch tokens into its global feature (spec 3)."""

    def __init__(self, width: int):
        super().__init__()
        self.reduce = nn.ModuleDict({
            modality: nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), QuickGELU())
            for modality in MODALITIES})

    def forward(self, patches: dict[str, torch.Tensor], class_tokens: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """patches (B, N, C), class tokens (B, C) → globals (B, C), by modality."""
        return {modality: reduce(torch.cat([class_tokens[modality], patches[modality].mean(dim=1)], dim=-1))
                for modality, reduce in self.reduce.items()}


class DeMo(nn.Module):
    """Multi-modal re-identification from triplets of images.

    In training a forward returns the flat tuple (scores, feature, scores, feature, …), enhanced features first; in
    evaluation the feature of one return pattern. `pair_weights` weighs the losses of the pairs.
    """

    def __init__(self, cfg: CfgNode, num_class: int, camera_num: int):
        super().__init__()
        self.num_class, self.camera_num = num_class, camera_num
        self.missing = _missing_modalities(cfg.TEST.MISS)
        self.trunk = Trunk(cfg, camera_num)
        width = self.trunk.width
        self.pife = PIFE(width) if cfg.MODEL.GLOBAL_LOCAL else None
        self.sdtps = _build_sdtps(cfg, self.trunk) if cfg.MODEL.USE_SDTPS else None
        self.one_head = cfg.MODEL.DIRECT == 1

        widths = {"sdtps": 3 * width} if self.sdtps else {}
        widths |= {"original": 3 * width} if self.one_head else dict.fromkeys(MODALITIES, width)
        self.heads = nn.ModuleDict({name: BNNeck(dim, num_class) for name, dim in widths.items()})
        self.pair_weights = tuple(cfg.MODEL.SDTPS_LOSS_WEIGHT if name == "sdtps" else 1.0 for name in widths)

    def forward(self, images: dict[str, torch.Tensor], cam_label: torch.Tensor,
                return_pattern: int = 3) -> tuple[torch.Tensor, ...] | torch.Tensor:
        """images {modality: (B, 3, H, W)}, cam_label (B,) from 0 → pairs in training, (B, D) in evaluation."""
        if self.training:
            features = self.features(images, cam_label)
            return tuple(part for name, feature in features.items() for part in (self.heads[name](feature), feature))
        return self.patterns(images, cam_label)[return_pattern]

    def patterns(self, images: dict[str, torch.Tensor], cam_label: torch.Tensor) -> dict[int, torch.Tensor]:
        """All three return patterns from one pass: 1 original (B, 3C), 2 enhanced, 3 both."""
        features = self.features(images, cam_label)
        original = torch.cat([feature for name, feature in features.items() if name not in ENHANCED], dim=-1)
        enhanced = [features[name] for name in ENHANCED if name in features]
        by_pattern = (original, torch.cat(enhanced or [original], dim=-1), torch.cat([original, *enhanced], dim=-1))
        return dict(zip(RETURN_PATTERNS, by_pattern, strict=True))

    def features(self, images: dict[str, torch.Tensor], cam_label: torch.Tensor) -> dict[str, torch.Tensor]:
        """The feature of every head by its name, before the BatchNorm, enhanced ones first; float32."""
        patches, globals_ = self.encode(images, cam_label)
        features = {}
        if self.sdtps:
            slimmed = self.slim(patches, globals_)[0]
            features["sdtps"] = torch.cat([tokens.mean(dim=1) for tokens in slimmed.values()], dim=-1)
        features |= {"original": torch.cat(list(globals_.values()), dim=-1)} if self.one_head else globals_
        return {name: feature.float() for name, feature in features.items()}

    def encode(self, images: dict[str, torch.Tensor], cam_label: torch.Tensor) -> tuple[dict, dict]:
        """Trunk and PIFE: → patch tokens (B, N, C) and globals (B, C), by modality."""
        if not self.training:
            images = {modality: torch.zeros_like(image) if modality in self.missing else image
                      for modality, image in images.items()}
        # One batch of 3B: the trunk does not know modalities.
        batch = torch.cat([images[modality] for modality in MODALITIES])
        patches, class_tokens = (dict(zip(MODALITIES, tokens.chunk(len(MODALITIES)), strict=True))
                                 for tokens in self.trunk(batch, cam_label.repeat(len(MODALITIES))))
        return patches, self.pife(patches, class_tokens) if self.pife else class_tokens

    def slim(self, patches: dict[str, torch.Tensor], globals_: dict[str, torch.Tensor]) -> tuple[dict, dict]:
        """SDTPS: → slimmed tokens (B, N_c + 1, C) and decision masks (B, N), by modality."""
        outputs = self.sdtps(*(patches[modality] for modality in MODALITIES),
                             *(globals_[modality] for modality in MODALITIES))
        count = len(MODALITIES)
        return (dict(zip(MODALITIES, outputs[:count], strict=True)), dict(zip(MODALITIES, outputs[count:], strict=True)))


def make_model(cfg: CfgNode, num_class: int, camera_num: int, view_num: int = 0) -> DeMo:
    """The model of a configuration, randomly initialised, for `num_class` training identities and `camera_num` cameras.

    `view_num` is DeMo's argument; the view embedding is not there yet (config refuses it). Raises `UserError`.
    """
    return DeMo(cfg, num_class, camera_num)


def _build_sdtps(cfg: CfgNode, trunk: Trunk) -> MultiModalSDTPS:
    model = cfg.MODEL
    try:
        return MultiModalSDTPS(trunk.width, trunk.num_patches, model.SDTPS_SPARSE_RATIO, model.SDTPS_AGGR_RATIO,
                               model.SDTPS_USE_GUMBEL, model.SDTPS_GUMBEL_TAU, model.SDTPS_BETA)
    except ValueError as error:
        raise UserError(f"MODEL.SDTPS_SPARSE_RATIO and MODEL.SDTPS_AGGR_RATIO do not fit: {error}") from None


def _missing_modalities(text: str) -> frozenset[str]:
    if text in ("None", "nothing"):
        return frozenset()
    return frozenset(modality for modality in MODALITIES if modality[0].lower() in text)
