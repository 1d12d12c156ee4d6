"""The model: one backbone for three modalities, PIFE, SDTPS, HDM and ATMoE, and a BNNeck head per feature (docs/method.md)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from timm.layers import QuickGELU
from torch import nn
from torch.utils._pytree import tree_map
from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES, UserError
from demo_sdtps.config.common import SDTPS_SETTINGS
from demo_sdtps.modeling.backbones import Backbone, make_backbone
from demo_sdtps.modeling.fusion import HDM, ATMoE
from demo_sdtps.modeling.losses import TrainingOutput
from demo_sdtps.modeling.modalities import ByModality, is_missing, make_layout, modality_subsets
from demo_sdtps.modeling.precision import half_weights
from demo_sdtps.modeling.scores import make_score
from demo_sdtps.modeling.sdtps import SDTPS, Selection
from vit_slim.scores import saliency
from vit_slim.stage import Block, State, check_stages, split_rows
from vit_slim.wrap import Slimming


class StageRecord(NamedTuple):
    """What a stage of token pruning scored and kept, by modality."""

    score: ByModality  # (B, n), of the patches that the stage before has kept
    kept: ByModality  # (B, K) int64: index on the grid of each patch that was kept, ascending


class EncodedTriplets(NamedTuple):
    """What backbone and PIFE return for B triplets, by modality."""

    tokens: ByModality  # of the patches that are left, (B, n, C)
    global_feats: ByModality  # (B, C); without PIFE the class tokens
    missing: ByModality  # whether the image is zeros, (B, 1) bool
    stages: tuple[StageRecord, ...] = ()  # what slimming kept; empty without slimming
    loss: torch.Tensor | None = None  # (1,): mean of the losses of slimming's scores; None without


def make_slimming(cfg: CfgNode, backbone: Backbone) -> Slimming:
    """The stages of MODEL.SLIM_BLOCKS for a backbone of this project."""
    model, blocks = cfg.MODEL, cfg.MODEL.SLIM_BLOCKS
    settings = backbone.vit.embed_dim, backbone.grid_size, model.MODALITIES
    scores = [make_score(model.SLIM_SCORE, cfg, *settings) for _ in blocks]
    check_stages(blocks, len(backbone.vit.blocks), "MODEL.SLIM_BLOCKS", model.TRANSFORMER_TYPE)
    return Slimming(blocks, model.SLIM_KEEP, scores, model.SLIM_MERGE, model.SLIM_SHARED)


def slim_backbone(
    slimming: Slimming, backbone: Backbone, stem: ByModality, images: ByModality
) -> EncodedTriplets:
    """Tokens after `slimming.blocks[0]` blocks of a backbone of this project, (B, P + N, C) by modality → those after all, with
    class tokens as global features. `images` tell which are missing, and are for the scores that read them."""
    count, outputs = len(stem), []
    rows = [*stem.values(), *images.values()]
    with backbone.ready(rows[0].device):
        for chunk in zip(*backbone.chunks(*rows, images_each=count), strict=True):
            stem_rows = dict(zip(stem, chunk, strict=False))
            image_rows = dict(zip(images, chunk[count:], strict=True))
            outputs.append(_run(slimming, backbone, stem_rows, image_rows))
    # Chunks are of evaluation, which has no loss.
    join = lambda *rows: None if rows[0] is None else torch.cat(rows)  # noqa: E731
    return outputs[0] if len(outputs) == 1 else tree_map(join, *outputs)


def _run(
    slimming: Slimming, backbone: Backbone, stem: ByModality, images: ByModality
) -> EncodedTriplets:
    grid, names, patch = backbone.grid_size, tuple(stem), backbone.vit.patch_embed.proj
    rows, missing = torch.cat(list(images.values())), is_missing(images)
    reads, windows = slimming.reads_saliency, (patch.kernel_size, patch.stride)
    known = saliency(rows, *windows, grid) if reads else None
    absent = torch.cat(list(missing.values()))
    state = State(grid, names, slimming.shared, rows, absent, known)
    values, records, losses = torch.cat(list(stem.values())), [], []
    prefix, dtype = backbone.vit.num_prefix_tokens, values.dtype
    blocks, arguments = backbone.vit.blocks, backbone.block_arguments()
    stops = (*slimming.blocks[1:], len(blocks))
    for number, (start, stop) in enumerate(zip(slimming.blocks, stops, strict=True)):
        step = slimming(
            number, values, state, Block(blocks[start], blocks[start], arguments[start])
        )
        state = step.state
        parts = step.score, state.places(step.values)
        records.append(StageRecord(*(split_rows(part, names) for part in parts)))
        losses += [] if step.loss is None else [step.loss]
        values = backbone.run_blocks(step.values, state, start + 1, stop)
    values = backbone.finish(values[:, : prefix + state.count])
    values = values.to(dtype) if backbone.precision else values
    tokens, class_tokens = split_rows(values[:, prefix:], names), split_rows(values[:, 0], names)
    loss = torch.stack(losses).mean(dim=0, keepdim=True) if losses else None
    return EncodedTriplets(tokens, class_tokens, missing, tuple(records), loss)


class PIFE(nn.Module):
    """Mixes the mean of each modality's patch tokens into its global feature (docs/method.md)."""

    def __init__(self, width: int, modalities: Sequence[str]):
        super().__init__()
        self.reduce = nn.ModuleDict()
        for modality in modalities:
            layers = nn.LayerNorm(2 * width), nn.Linear(2 * width, width), QuickGELU()
            self.reduce[modality] = nn.Sequential(*layers)

    def forward(self, patches: ByModality, class_tokens: ByModality) -> ByModality:
        """patches (B, N, C), class tokens (B, C) → global features (B, C), by modality."""
        outputs = []
        for modality, tokens in patches.items():
            layers: Any = self.reduce[modality]
            norm, linear, activation = layers
            both = torch.cat([class_tokens[modality], tokens.mean(dim=1)], dim=-1)
            outputs.append(linear(norm(both)))
        return split_rows(activation(torch.cat(outputs)), patches)


class BNNeck(nn.Module):
    """BatchNorm with a frozen bias, then a linear classifier without bias: features (B, D) → logits (B, K)
    (Luo et al., Bag of Tricks for re-identification, 2019)."""

    def __init__(self, dim: int, num_class: int):
        super().__init__()
        self.bottleneck = nn.BatchNorm1d(dim)
        self.bottleneck.bias.requires_grad_(False)
        self.classifier = nn.Linear(dim, num_class, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.bottleneck(features))


class DeMo(nn.Module):
    """Multi-modal re-identification from triplets of images, or those of fewer `modalities` (MODEL.MODALITIES).

    In training a forward returns a `TrainingOutput`, in evaluation the feature of one return pattern. `layout` says which
    columns of the features are whose; `head_weights` are the weights of the heads' losses.
    """

    def __init__(self, cfg: CfgNode, num_class: int, camera_num: int):
        super().__init__()
        self.num_class, self.camera_num = num_class, camera_num
        self.modalities = tuple(cfg.MODEL.MODALITIES)
        self.backbone = make_backbone(cfg, camera_num)
        width, subsets = self.backbone.width, modality_subsets(self.modalities)
        self.slimming = make_slimming(cfg, self.backbone) if cfg.MODEL.SLIM_BLOCKS else None
        self.pife = PIFE(width, self.modalities) if cfg.MODEL.GLOBAL_LOCAL else None
        self.sdtps = self._make_sdtps(cfg) if cfg.MODEL.USE_SDTPS else None
        self.hdm = HDM(width, modalities=self.modalities) if cfg.MODEL.HDM else None
        self.atmoe = ATMoE(width, cfg.MODEL.HEAD, len(subsets)) if cfg.MODEL.ATM else None
        self.sdtps_feeds_hdm = cfg.MODEL.SDTPS_FEEDS_HDM
        self.missing_guide = cfg.MODEL.SDTPS_GUIDE_MISSING
        self.one_head = cfg.MODEL.DIRECT == 1
        fused = list(subsets.values()) if self.hdm else ()
        self.layout = make_layout(width, self.modalities, fused, self.one_head, bool(self.sdtps))
        widths = self.layout.widths.items()
        self.heads = nn.ModuleDict({name: BNNeck(dim, num_class) for name, dim in widths})
        weight = cfg.MODEL.SDTPS_LOSS_WEIGHT
        self.head_weights = {name: weight if name == "sdtps" else 1.0 for name in self.heads}
        if cfg.MODEL.FROZEN:
            self.backbone.vit.requires_grad_(False)

    def _make_sdtps(self, cfg: CfgNode) -> SDTPS:
        backbone = self.backbone
        patches = backbone.num_patches
        if self.slimming:
            patches = self.slimming.counts(patches)[-1]
        settings = {name: cfg.MODEL[f"SDTPS_{name.upper()}"] for name in SDTPS_SETTINGS}
        try:
            return SDTPS(backbone.width, patches, modalities=self.modalities, **settings)
        except ValueError as error:
            raise UserError(
                f"MODEL.SDTPS_SPARSE_RATIO and MODEL.SDTPS_AGGR_RATIO do not fit: {error}"
            ) from None

    def forward(
        self,
        images: ByModality,
        cam_label: torch.Tensor,
        return_pattern: int = 3,
        neck: str = "before",
    ) -> TrainingOutput | torch.Tensor:
        """images {modality: (B, 3, H, W)}, cam_label (B,) from 0 → `TrainingOutput` in training, (B, D) in evaluation.

        `neck` is as in `return_patterns`.
        """
        with half_weights(self):
            encoded = self.forward_features(images, cam_label)
            if not self.training:
                # A copy: a view would keep the memory of pattern 3.
                return self.return_patterns(encoded, neck)[return_pattern].contiguous()
            features = self.forward_head(encoded)
            logits = {name: self.heads[name](feature) for name, feature in features.items()}
            return TrainingOutput(logits, features, encoded.loss)

    def forward_features(self, images: ByModality, cam_label: torch.Tensor) -> EncodedTriplets:
        """Backbone and PIFE: images of some modalities, zeros for a missing one → their tokens and global features."""
        if self.slimming:
            return self.forward_stages(self.forward_stem(images, cam_label), images)
        present = sort_modalities(images)
        tokens = self.backbone(*self._batch(present, cam_label))
        patches, class_tokens = (split_rows(tensor, present) for tensor in tokens)
        return self._mix(EncodedTriplets(patches, class_tokens, is_missing(present)))

    def forward_stem(self, images: ByModality, cam_label: torch.Tensor) -> ByModality:
        """Images → tokens (B, P + N, C) after the blocks before the first stage of slimming."""
        assert self.slimming is not None
        present = sort_modalities(images)
        rows = self.backbone.stem(*self._batch(present, cam_label), self.slimming.blocks[0])
        return split_rows(rows, present)

    def forward_stages(self, stem: ByModality, images: ByModality) -> EncodedTriplets:
        """Tokens of `forward_stem` → what the other blocks and PIFE make of them, with slimming."""
        assert self.slimming is not None
        present = sort_modalities(images)
        return self._mix(slim_backbone(self.slimming, self.backbone, stem, present))

    def forward_head(self, encoded: EncodedTriplets) -> dict[str, torch.Tensor]:
        """Encoded triplets → the feature of every head by its name, before the BatchNorm, enhanced ones first; float32."""
        features, global_feats, patches = {}, encoded.global_feats, encoded.tokens
        if self.sdtps:
            selected = {name: each.tokens for name, each in self.select_patches(encoded).items()}
            means = [tokens.mean(dim=1) for tokens in selected.values()]
            features["sdtps"] = torch.cat(means, dim=-1)
            patches = selected if self.sdtps_feeds_hdm else patches
        if self.hdm:
            decoupled = self.hdm(patches, global_feats)
            features["moe"] = self.atmoe(decoupled) if self.atmoe else decoupled.flatten(1)
        if self.one_head:
            features["original"] = torch.cat(list(global_feats.values()), dim=-1)
        else:
            features |= global_feats
        return {name: feature.float() for name, feature in features.items()}

    def return_patterns(
        self, encoded: EncodedTriplets, neck: str = "before"
    ) -> dict[int, torch.Tensor]:
        """The return patterns of encoded triplets, (B, D) each, views of pattern 3; `neck`: "before" or "after" BatchNorm."""
        features = self.forward_head(encoded)
        if neck == "after":
            for name, feature in features.items():
                features[name] = self.heads.get_submodule(f"{name}.bottleneck")(feature)
        return self.layout.split(self.layout.join(features))

    def select_patches(self, encoded: EncodedTriplets) -> dict[str, Selection]:
        """What SDTPS makes of the patches, by modality."""
        assert self.sdtps is not None
        missing = {} if self.missing_guide else encoded.missing
        return self.sdtps(encoded.tokens, encoded.global_feats, missing)

    def _batch(
        self, images: ByModality, cameras: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One batch of all modalities, which the backbone does not know: images (M·B, 3, H, W), cameras (M·B,)."""
        rows = torch.cat(list(images.values()))
        return rows, cameras.to(rows.device, non_blocking=True).repeat(len(images))

    def _mix(self, encoded: EncodedTriplets) -> EncodedTriplets:
        """With PIFE's global features, where it is on, in place of the class tokens."""
        if self.pife is None:
            return encoded
        return encoded._replace(global_feats=self.pife(encoded.tokens, encoded.global_feats))


def sort_modalities(images: ByModality) -> ByModality:
    """The images in the order of MODALITIES."""
    return {modality: images[modality] for modality in MODALITIES if modality in images}


def make_model(cfg: CfgNode, num_class: int, camera_num: int, view_num: int = 0) -> DeMo:
    """The model of a configuration, randomly initialised, for `num_class` training identities and `camera_num` cameras.

    `view_num` is DeMo's argument, without effect: the data sets have no views (the configuration refuses MODEL.SIE_VIEW).
    Raises `UserError` for a configuration that cannot be built.
    """
    return DeMo(cfg, num_class, camera_num)


def missing_modalities(text: str) -> frozenset[str]:
    """The modalities that a value of TEST.MISS names by their first letters."""
    if text == "all":
        raise UserError(
            "TEST.MISS is 'all', which demo-sdtps test alone understands; name one case such as 'rn', or 'nothing'."
        )
    letters = "" if text in ("None", "nothing") else text
    return frozenset(modality for modality in MODALITIES if modality[0].lower() in letters)
