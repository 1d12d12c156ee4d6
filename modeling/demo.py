"""The model: one backbone for three modalities, PIFE, a token selector, HDM and ATMoE, and a BNNeck head per feature
(docs/method.md)."""
from collections.abc import Sequence
from dataclasses import replace

import torch
from timm.layers import QuickGELU
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.fusion import HDM, SUBSETS, ATMoE
from demo_sdtps.modeling.heads import BNNeck
from demo_sdtps.modeling.selectors import make_selector, selector_name
from demo_sdtps.modeling.selectors.base import ByModality, Context, Selection, Selector


class PIFE(nn.Module):
    """Mixes the mean of each modality's patch tokens into its global feature (docs/method.md)."""

    def __init__(self, width: int):
        super().__init__()
        self.reduce = nn.ModuleDict({
            modality: nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), QuickGELU())
            for modality in MODALITIES})

    def forward(self, patches: ByModality, class_tokens: ByModality) -> ByModality:
        """patches (B, N, C), class tokens (B, C) → global features (B, C), by modality."""
        return {modality: self.reduce[modality](torch.cat([class_tokens[modality], tokens.mean(dim=1)], dim=-1))
                for modality, tokens in patches.items()}


class DeMo(nn.Module):
    """Multi-modal re-identification from triplets of images.

    In training a forward returns the flat tuple (logits, feature, logits, feature, …), enhanced features first, and, with
    HDM, last its auxiliary loss, the number 0; in evaluation the feature of one return pattern. `pair_weights` are the weights
    of the pairs' losses, `widths` the widths of their features by head, `columns` the columns of each return pattern in
    pattern 3.

    The selector is the submodule of its name, so `sdtps` in DeMo's checkpoints.
    """

    def __init__(self, cfg: CfgNode, num_class: int, camera_num: int):
        super().__init__()
        self.num_class, self.camera_num = num_class, camera_num
        self.backbone = make_backbone(cfg, camera_num)
        width = self.backbone.width
        self.pife = PIFE(width) if cfg.MODEL.GLOBAL_LOCAL else None
        self.selector_name = selector_name(cfg)
        selector = make_selector(cfg, width, self.backbone.grid_size)
        if selector:
            self.add_module(self.selector_name, selector)
        self.hdm = HDM(width) if cfg.MODEL.HDM else None
        self.atmoe = ATMoE(width, cfg.MODEL.HEAD) if cfg.MODEL.ATM else None
        self.selector_feeds_hdm = cfg.MODEL.SDTPS_FEEDS_HDM
        self.one_head = cfg.MODEL.DIRECT == 1

        enhanced = {self.selector_name: len(MODALITIES) * width} if selector else {}
        enhanced |= {"moe": len(SUBSETS) * width} if self.hdm else {}
        original = {"original": len(MODALITIES) * width} if self.one_head else dict.fromkeys(MODALITIES, width)
        self.enhanced, self.widths = tuple(enhanced), enhanced | original
        width = sum(original.values())
        columns = (slice(width), slice(width if enhanced else 0, None), slice(None))
        self.columns = dict(zip(RETURN_PATTERNS, columns, strict=True))
        self.heads = nn.ModuleDict({name: BNNeck(dim, num_class) for name, dim in self.widths.items()})
        self.pair_weights = {name: selector.loss_weight if selector and name == self.selector_name else 1.0
                             for name in self.widths}
        if cfg.MODEL.FROZEN:
            self.backbone.vit.requires_grad_(False)

    @property
    def selector(self) -> Selector | None:
        return getattr(self, self.selector_name) if self.selector_name else None

    def forward(self, images: ByModality, cam_label: torch.Tensor,
                return_pattern: int = 3) -> tuple[torch.Tensor | int, ...] | torch.Tensor:
        """images {modality: (B, 3, H, W)}, cam_label (B,) from 0 → pairs in training, (B, D) in evaluation."""
        if not self.training:
            # A copy: a view would keep the memory of pattern 3.
            return self.patterns(images, cam_label)[return_pattern].contiguous()
        features = self.features(self.encode(images, cam_label))
        pairs = tuple(part for name, feature in features.items() for part in (self.heads[name](feature), feature))
        return (*pairs, 0) if self.hdm else pairs

    def patterns(self, images: ByModality, cam_label: torch.Tensor) -> dict[int, torch.Tensor]:
        """`extract_features` of complete triplets, before the neck."""
        return self.extract_features(images, cam_label, [frozenset()])[0]

    def extract_features(self, images: ByModality, cam_label: torch.Tensor, cases: Sequence[frozenset[str]],
                         neck: str = "before") -> list[dict[int, torch.Tensor]]:
        """Return patterns in each case of missing modalities, whose images count as zeros: 1 original (B, 3C), 2 enhanced, 3
        both, of which the others are views. `neck`: "before" or "after" the BatchNorm of each head."""
        return [self._patterns(context, neck) for context in self.encode_cases(images, cam_label, cases)]

    def features(self, context: Context) -> dict[str, torch.Tensor]:
        """The feature of every head by its name, before the BatchNorm, enhanced ones first; float32."""
        features, patches, global_feats = {}, context.tokens, context.global_feats
        if self.selector:
            selected = {modality: selection.tokens for modality, selection in self.select_tokens(context).items()}
            features[self.selector_name] = torch.cat([tokens.mean(dim=1) for tokens in selected.values()], dim=-1)
            patches = selected if self.selector_feeds_hdm else patches
        if self.hdm:
            decoupled = self.hdm(patches, global_feats)
            features["moe"] = self.atmoe(decoupled) if self.atmoe else decoupled.flatten(1)
        features |= {"original": torch.cat(list(global_feats.values()), dim=-1)} if self.one_head else global_feats
        return {name: feature.float() for name, feature in features.items()}

    def select_tokens(self, context: Context) -> dict[str, Selection]:
        """The selector's choice by modality."""
        return getattr(self, self.selector_name)(context)

    def encode(self, images: ByModality, cam_label: torch.Tensor) -> Context:
        """Backbone and PIFE: images of some or all modalities → their tokens and global features."""
        images = {modality: images[modality] for modality in MODALITIES if modality in images}
        # One batch of 3B: the backbone does not know modalities.
        tokens = self.backbone(torch.cat(list(images.values())), cam_label.repeat(len(images)))
        patches, class_tokens = (dict(zip(images, part.chunk(len(images)), strict=True)) for part in tokens)
        global_feats = self.pife(patches, class_tokens) if self.pife else class_tokens
        return Context(patches, class_tokens, self.backbone.grid_size, global_feats)

    def encode_cases(self, images: ByModality, cam_label: torch.Tensor, cases: Sequence[frozenset[str]]) -> list[Context]:
        """`encode` in several cases of missing modalities, whose images count as zeros.

        Every image passes through the backbone once, whatever the number of cases, and a zero image once per camera: nothing
        before the selector and HDM mixes modalities.
        """
        present = {modality: image for modality, image in images.items() if any(modality not in case for case in cases)}
        absent = frozenset[str]().union(*cases)
        seen = self.encode(present, cam_label)
        blank = self._encode_blank({m: image for m, image in images.items() if m in absent}, cam_label) if absent else seen
        return [_mixed(seen, blank, case) for case in cases]

    def _encode_blank(self, images: ByModality, cam_label: torch.Tensor) -> Context:
        cameras, camera_of = cam_label.unique(return_inverse=True)
        blank = self.encode({modality: torch.zeros_like(image[:1]).expand(len(cameras), -1, -1, -1)
                             for modality, image in images.items()}, cameras)
        tokens, class_tokens, global_feats = ({modality: part[camera_of] for modality, part in parts.items()}
                                              for parts in (blank.tokens, blank.class_tokens, blank.global_feats))
        return replace(blank, tokens=tokens, class_tokens=class_tokens, global_feats=global_feats)

    def _patterns(self, context: Context, neck: str) -> dict[int, torch.Tensor]:
        features = self.features(context)
        if neck == "after":
            features = {name: self.heads.get_submodule(f"{name}.bottleneck")(feature) for name, feature in features.items()}
        both = torch.cat([features[name] for name in sorted(features, key=lambda name: name in self.enhanced)], dim=-1)
        return self.split_patterns(both)

    def split_patterns(self, both: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return patterns as views of pattern 3, (B, D)."""
        return {pattern: both[:, columns] for pattern, columns in self.columns.items()}


def _mixed(seen: Context, blank: Context, missing: frozenset[str]) -> Context:
    """`seen` with the `missing` modalities of `blank`."""
    tokens, class_tokens, global_feats = (
        {modality: (empty if modality in missing else full)[modality] for modality in MODALITIES}
        for full, empty in ((seen.tokens, blank.tokens), (seen.class_tokens, blank.class_tokens),
                            (seen.global_feats, blank.global_feats)))
    return Context(tokens, class_tokens, seen.grid, global_feats, missing)


def make_model(cfg: CfgNode, num_class: int, camera_num: int, view_num: int = 0) -> DeMo:
    """The model of a configuration, randomly initialised, for `num_class` training identities and `camera_num` cameras.

    `view_num` is DeMo's argument, without effect: the data sets have no views (the configuration refuses MODEL.SIE_VIEW).
    Raises `UserError` for a configuration that cannot be built.
    """
    return DeMo(cfg, num_class, camera_num)


def missing_modalities(text: str) -> frozenset[str]:
    """The modalities that a value of TEST.MISS names by their first letters. Raises `UserError` for 'all', which is no case."""
    if text == "all":
        raise UserError("TEST.MISS is 'all', which test_net.py alone understands; name one case such as 'rn', or 'nothing'.")
    if text in ("None", "nothing"):
        return frozenset()
    return frozenset(modality for modality in MODALITIES if modality[0].lower() in text)
