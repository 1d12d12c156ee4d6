"""The model: one backbone for three modalities, PIFE, SDTPS, HDM and ATMoE, and a BNNeck head per feature (docs/method.md)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from timm.layers import QuickGELU
from torch import nn
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, RETURN_PATTERNS, UserError
from demo_sdtps.config.common import SDTPS_ARGUMENTS
from demo_sdtps.config.scores import MASK
from demo_sdtps.modeling.backbones import make_backbone
from demo_sdtps.modeling.fusion import HDM, ATMoE, subsets_of
from demo_sdtps.modeling.heads import BNNeck, TrainingOutput
from demo_sdtps.modeling.slimming.scores.base import Context
from demo_sdtps.modeling.slimming.scores.sdtps import SDTPS
from demo_sdtps.modeling.slimming.stage import make_slimming, patch_shares, slim_backbone
from demo_sdtps.modeling.slimming.tokens import ByModality, is_missing, split_rows

ENCODED = ("tokens", "class_tokens", "global_feats", "missing")
"""Fields of a `Context` without slimming that have a row for each triplet."""


class PIFE(nn.Module):
    """Mixes the mean of each modality's patch tokens into its global feature (docs/method.md)."""

    def __init__(self, width: int, modalities: Sequence[str]):
        super().__init__()
        self.reduce = nn.ModuleDict(
            {
                modality: nn.Sequential(
                    nn.LayerNorm(2 * width), nn.Linear(2 * width, width), QuickGELU()
                )
                for modality in modalities
            }
        )

    def forward(self, patches: ByModality, class_tokens: ByModality) -> ByModality:
        """patches (B, N, C), class tokens (B, C) → global features (B, C), by modality."""
        return {
            modality: self.reduce[modality](
                torch.cat([class_tokens[modality], tokens.mean(dim=1)], dim=-1)
            )
            for modality, tokens in patches.items()
        }


class DeMo(nn.Module):
    """Multi-modal re-identification from triplets of images, or those of fewer `modalities` (MODEL.MODALITIES).

    In training a forward returns a `TrainingOutput`, in evaluation the feature of one return pattern. `head_weights` are the
    weights of the heads' losses, `widths` the widths of their features, `columns` the columns of each return pattern in
    pattern 3, `sources` the modalities that each C columns of a return pattern are made from.
    """

    def __init__(self, cfg: CfgNode, num_class: int, camera_num: int):
        super().__init__()
        self.num_class, self.camera_num, self.modalities = (
            num_class,
            camera_num,
            tuple(cfg.MODEL.MODALITIES),
        )
        self.backbone = make_backbone(cfg, camera_num)
        width = self.backbone.width
        self.slimming = make_slimming(cfg, self.backbone) if cfg.MODEL.SLIM_BLOCKS else None
        self.pife = PIFE(width, self.modalities) if cfg.MODEL.GLOBAL_LOCAL else None
        self.sdtps = self._make_sdtps(cfg) if cfg.MODEL.USE_SDTPS else None
        subsets = subsets_of(self.modalities)
        self.hdm = HDM(width, modalities=self.modalities) if cfg.MODEL.HDM else None
        self.atmoe = ATMoE(width, cfg.MODEL.HEAD, len(subsets)) if cfg.MODEL.ATM else None
        self.sdtps_feeds_hdm = cfg.MODEL.SDTPS_FEEDS_HDM
        self.one_head = cfg.MODEL.DIRECT == 1

        whole = len(self.modalities) * width
        enhanced = {"sdtps": whole} if self.sdtps else {}
        enhanced |= {"moe": len(subsets) * width} if self.hdm else {}
        original = {"original": whole} if self.one_head else dict.fromkeys(self.modalities, width)
        self.enhanced, self.widths = tuple(enhanced), enhanced | original
        width = sum(original.values())
        columns = (slice(width), slice(width if enhanced else 0, None), slice(None))
        self.columns = dict(zip(RETURN_PATTERNS, columns, strict=True))
        unfused, fused = (
            [frozenset(names) for names in groups]
            for groups in (zip(self.modalities), subsets.values())
        )
        sources = unfused + (unfused if self.sdtps else []) + (fused if self.hdm else [])
        self.sources = {1: unfused, 2: sources[len(unfused) :] or unfused, 3: sources}
        self.heads = nn.ModuleDict(
            {name: BNNeck(dim, num_class) for name, dim in self.widths.items()}
        )
        self.head_weights = {
            name: cfg.MODEL.SDTPS_LOSS_WEIGHT if name == "sdtps" else 1.0 for name in self.widths
        }
        if cfg.MODEL.FROZEN:
            self.backbone.vit.requires_grad_(False)

    def _make_sdtps(self, cfg: CfgNode) -> SDTPS:
        patches = (
            self.slimming.counts(self.backbone.num_patches)[-1]
            if self.slimming
            else self.backbone.num_patches
        )
        settings = {
            name: cfg.MODEL[f"SDTPS_{name.upper()}"] for name in ("guide_missing", *SDTPS_ARGUMENTS)
        }
        try:
            return SDTPS(
                self.backbone.width,
                self.backbone.grid_size,
                patches,
                modalities=self.modalities,
                **settings,
            )
        except ValueError as error:
            raise UserError(
                f"MODEL.SDTPS_SPARSE_RATIO and MODEL.SDTPS_AGGR_RATIO do not fit: {error}"
            ) from None

    def forward(
        self, images: ByModality, cam_label: torch.Tensor, return_pattern: int = 3
    ) -> TrainingOutput | torch.Tensor:
        """images {modality: (B, 3, H, W)}, cam_label (B,) from 0 → `TrainingOutput` in training, (B, D) in evaluation.

        Scores of slimming that read foreground masks find them among the images: {MASK: (B, 1, H, W) in [0, 1]}.
        """
        if not self.training:
            # A copy: a view would keep the memory of pattern 3.
            return self.patterns(images, cam_label)[return_pattern].contiguous()
        context = self.encode(images, cam_label)
        features = self.features(context)
        return TrainingOutput(
            {name: self.heads[name](feature) for name, feature in features.items()},
            features,
            context.loss,
        )

    def patterns(self, images: ByModality, cam_label: torch.Tensor) -> dict[int, torch.Tensor]:
        """`extract_features` of complete triplets, before the neck."""
        return self.extract_features(images, cam_label, [frozenset()])[0]

    def extract_features(
        self,
        images: ByModality,
        cam_label: torch.Tensor,
        cases: Sequence[frozenset[str]],
        neck: str = "before",
    ) -> list[dict[int, torch.Tensor]]:
        """Return patterns in each case of missing modalities, whose images count as zeros: 1 original (B, 3C), 2 enhanced, 3
        both, of which the others are views. `neck`: "before" or "after" the BatchNorm of each head."""
        return [
            self.patterns_of(context, neck)
            for context in self.encode_cases(images, cam_label, cases)
        ]

    def features(self, context: Context) -> dict[str, torch.Tensor]:
        """The feature of every head by its name, before the BatchNorm, enhanced ones first; float32."""
        features, patches, global_feats = {}, context.tokens, context.global_feats
        if self.sdtps:
            selected = {
                modality: selection.tokens for modality, selection in self.sdtps(context).items()
            }
            features["sdtps"] = torch.cat(
                [tokens.mean(dim=1) for tokens in selected.values()], dim=-1
            )
            patches = selected if self.sdtps_feeds_hdm else patches
        if self.hdm:
            decoupled = self.hdm(patches, global_feats)
            features["moe"] = self.atmoe(decoupled) if self.atmoe else decoupled.flatten(1)
        features |= (
            {"original": torch.cat(list(global_feats.values()), dim=-1)}
            if self.one_head
            else global_feats
        )
        return {name: feature.float() for name, feature in features.items()}

    def encode(self, images: ByModality, cam_label: torch.Tensor) -> Context:
        """Backbone and PIFE: images of some or all modalities → their tokens and global features.

        An image of zeros is a missing one.
        """
        if self.slimming:
            return self._slim(self._stem(images, cam_label), images)
        tokens = self.backbone(*self._batch(images, cam_label))
        patches, class_tokens = (split_rows(tensor, _present(images)) for tensor in tokens)
        global_feats = self.pife(patches, class_tokens) if self.pife else class_tokens
        return Context(
            patches,
            class_tokens,
            self.backbone.grid_size,
            global_feats,
            is_missing(_present(images)),
        )

    def encode_cases(
        self, images: ByModality, cam_label: torch.Tensor, cases: Sequence[frozenset[str]]
    ) -> list[Context]:
        """`encode` in several cases of missing modalities, whose images count as zeros.

        Every image passes through the backbone once, whatever the number of cases, and a zero image once per camera: nothing
        before SDTPS and HDM mixes modalities. Slimming does, so that the blocks after its first run for each case.
        `cam_label` may be on the CPU where the images are on a GPU, which then is not waited for.
        """
        cameras = cam_label.to(next(iter(images.values())).device, non_blocking=True)
        present = {
            name: image for name, image in images.items() if any(name not in case for case in cases)
        }
        absent = frozenset[str]().union(*cases)
        blank_images = {name: image for name, image in images.items() if name in absent}
        if self.slimming:
            present_context = self._stem(present, cameras)
            empty = self._blank_stem(blank_images, cam_label) if absent else present_context
            return [
                self._slim(
                    {
                        name: (empty if name in case else present_context)[name]
                        for name in _present(images)
                    },
                    images
                    | {
                        name: _zeros(image, len(image))
                        for name, image in blank_images.items()
                        if name in case
                    },
                )
                for case in cases
            ]
        full = self.encode(present, cameras)
        blanks = self._encode_blank(blank_images, cam_label) if absent else full
        return [_mixed(full, blanks, case) for case in cases]

    def _batch(
        self, images: ByModality, cam_label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One batch of all modalities, which the backbone does not know: images (M·B, 3, H, W), cameras (M·B,)."""
        shown = _present(images)
        return torch.cat(list(shown.values())), cam_label.repeat(len(shown))

    def _stem(self, images: ByModality, cam_label: torch.Tensor) -> ByModality:
        """Images → tokens (B, P + N, C) after the blocks before the first stage of slimming."""
        assert self.slimming
        return split_rows(
            self.backbone.stem(*self._batch(images, cam_label), self.slimming.blocks[0]),
            _present(images),
        )

    def _slim(self, stem: ByModality, images: ByModality) -> Context:
        """The other blocks, and PIFE."""
        assert self.slimming
        foreground = (
            patch_shares(images[MASK], *self.backbone.patch_windows) if MASK in images else None
        )
        shown = _present(images)
        slimmed = slim_backbone(self.slimming, self.backbone, stem, shown, foreground)
        global_feats = (
            self.pife(slimmed.tokens, slimmed.class_tokens) if self.pife else slimmed.class_tokens
        )
        return Context(
            slimmed.tokens,
            slimmed.class_tokens,
            self.backbone.grid_size,
            global_feats,
            is_missing(shown),
            positions=slimmed.stages[-1].kept,
            stages=slimmed.stages,
            loss=slimmed.loss,
        )

    def _encode_blank(self, images: ByModality, cam_label: torch.Tensor) -> Context:
        zeros, cameras, camera_of = _one_per_camera(images, cam_label)
        context = self.encode(zeros, cameras)
        rows: dict[str, Any] = {
            field: {name: values[camera_of] for name, values in getattr(context, field).items()}
            for field in ENCODED
        }
        return replace(context, **rows)

    def _blank_stem(self, images: ByModality, cam_label: torch.Tensor) -> ByModality:
        zeros, cameras, camera_of = _one_per_camera(images, cam_label)
        return {modality: stem[camera_of] for modality, stem in self._stem(zeros, cameras).items()}

    def patterns_of(self, context: Context, neck: str) -> dict[int, torch.Tensor]:
        """The return patterns of encoded triplets, (B, D) each; `neck` as in `extract_features`."""
        features = self.features(context)
        if neck == "after":
            features = {
                name: self.heads.get_submodule(f"{name}.bottleneck")(feature)
                for name, feature in features.items()
            }
        both = torch.cat(
            [features[name] for name in sorted(features, key=lambda name: name in self.enhanced)],
            dim=-1,
        )
        return self.split_patterns(both)

    def split_patterns(self, both: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return patterns as views of pattern 3, (B, D)."""
        return {pattern: both[:, columns] for pattern, columns in self.columns.items()}


def _present(images: ByModality) -> ByModality:
    """The images of modalities, in their order, without a mask."""
    return {modality: images[modality] for modality in MODALITIES if modality in images}


def _one_per_camera(
    images: ByModality, cam_label: torch.Tensor
) -> tuple[ByModality, torch.Tensor, torch.Tensor]:
    """Zero images in the place of `images`, one for each camera of `cam_label` (B,), these cameras, and the place of each of
    `cam_label` among them, (B,)."""
    device = next(iter(images.values())).device
    cameras, camera_of = (
        tensor.to(device, non_blocking=True) for tensor in cam_label.unique(return_inverse=True)
    )
    return (
        {modality: _zeros(image, len(cameras)) for modality, image in images.items()},
        cameras,
        camera_of,
    )


def _zeros(image: torch.Tensor, count: int) -> torch.Tensor:
    """`count` images of zeros like `image` (B, 3, H, W), in the memory of one."""
    return torch.zeros_like(image[:1]).expand(count, -1, -1, -1)


def _mixed(context: Context, blanks: Context, missing: frozenset[str]) -> Context:
    """`context` with the `missing` modalities of `blanks`."""
    names = [
        modality
        for modality in MODALITIES
        if modality in context.tokens or modality in blanks.tokens
    ]
    mixed: dict[str, Any] = {
        field: {
            name: getattr(blanks if name in missing else context, field)[name] for name in names
        }
        for field in ENCODED
    }
    return replace(context, **mixed)


def make_model(cfg: CfgNode, num_class: int, camera_num: int, view_num: int = 0) -> DeMo:
    """The model of a configuration, randomly initialised, for `num_class` training identities and `camera_num` cameras.

    `view_num` is DeMo's argument, without effect: the data sets have no views (the configuration refuses MODEL.SIE_VIEW).
    Raises `UserError` for a configuration that cannot be built.
    """
    return DeMo(cfg, num_class, camera_num)


def missing_modalities(text: str) -> frozenset[str]:
    """The modalities that a value of TEST.MISS names by their first letters. Raises `UserError` for 'all', which is no case."""
    if text == "all":
        raise UserError(
            "TEST.MISS is 'all', which test_net.py alone understands; name one case such as 'rn', or 'nothing'."
        )
    if text in ("None", "nothing"):
        return frozenset()
    return frozenset(modality for modality in MODALITIES if modality[0].lower() in text)
