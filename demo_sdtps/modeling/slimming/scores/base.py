"""The contract of a score of patches (`Score`), its input (`Context`), and what slimming keeps by it (`StageRecord`)."""

from dataclasses import dataclass, field, replace

import torch
from torch import nn

from demo_sdtps.modeling.class_attention import CLASS_TOKEN
from demo_sdtps.modeling.modalities import ByModality, Grid
from demo_sdtps.modeling.sdtps import softmax_mean
from demo_sdtps.modeling.slimming.tokens import Tokens
from demo_sdtps.runtime.errors import UserError


@dataclass(frozen=True)
class StageRecord:
    """What one of MODEL.SLIM_BLOCKS kept of n patches: K of them. By modality."""

    scored: ByModality  # (B, n) int64: index on the grid of each patch that was scored
    score: ByModality  # (B, n)
    kept: ByModality  # (B, K) int64: index on the grid of each patch that was kept, ascending

    def mask(self, modality: str, patches: int) -> torch.Tensor:
        """(B, N) float32: 1 for a patch of the grid that was kept."""
        kept = self.kept[modality]
        return torch.zeros(kept.shape[0], patches, device=kept.device).scatter_(1, kept, 1.0)


@dataclass(frozen=True)
class Context:
    """Encoded triplets: B triplets, N patches per image, C channels. The input of a score and of SDTPS.

    The model fills the fields from `tokens` to `missing`; a score that needs another says so in its docstring. Inside the
    backbone there are no global features yet. Slimming fills `positions`, `images`, and what the score asks for.
    """

    tokens: ByModality  # patch tokens (B, N, C), row by row of the grid
    class_tokens: ByModality  # (B, C)
    grid: Grid  # (rows, columns) of patches
    # What is not known is empty: global features (B, C); whether the image is zeros (B, 1) bool, a modality left out has all.
    global_feats: ByModality = field(default_factory=dict)
    missing: ByModality = field(default_factory=dict)
    # What a score asks for: attention (B, heads, N) over the patches; keys (B, N, D) of the next block, mean over its heads;
    # patches merged into each, (B, N) (`Tokens.sizes`).
    attention: ByModality = field(default_factory=dict)
    keys: ByModality = field(default_factory=dict)
    sizes: ByModality = field(default_factory=dict)
    # (B, N) int64 index of each patch on the grid, where it is empty patch i is at i; its share in the foreground mask.
    positions: ByModality = field(default_factory=dict)
    foreground: ByModality = field(default_factory=dict)
    images: ByModality = field(default_factory=dict)  # (B, 3, H, W)
    patch_size: tuple[int, ...] = (0, 0)  # (height, width) of a patch of the images, in pixels
    patch_stride: tuple[int, ...] = (0, 0)  # step between patches, in pixels
    modality: str = ""  # whose patches are scored; '' for all

    def of(self, modality: str) -> "Context":
        """The same with one modality in focus."""
        return replace(self, modality=modality)

    def positions_of(self, modality: str) -> torch.Tensor:
        """(B, N) int64: index on the grid of each patch of a modality, also where `positions` is empty."""
        if modality in self.positions:
            return self.positions[modality]
        tokens = self.tokens[modality]
        return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)


class Score(nn.Module):
    """Base class of scores of patches, by which slimming (modeling/slimming/stage.py) and SDTPS keep the best.

    A subclass defines `score` or `scores`. Its constructor takes the tokens' width C, the grid (rows, columns) of patches, and
    by their names the settings that it reads (`make_score`).
    """

    masks = False  # whether it reads foreground masks in training
    needs_attention = False  # whether it reads `Context.attention`: weights over the patches
    attention_of = CLASS_TOKEN  # whose these are; with slice(None) the mean of all tokens'
    needs_keys = False  # whether it reads `Context.keys`
    needs_sizes = False  # whether it reads `Context.sizes`, and its merged tokens weigh in attention by `Tokens.sizes`
    keeps_own = False  # whether each modality keeps its own places, whatever MODEL.SLIM_SHARED says
    of_images = False  # whether it reads the images alone, and is known before the backbone runs

    def __init__(self, width: int, grid: Grid, **settings: object):
        super().__init__()

    def forward(self, context: Context) -> ByModality:
        """`scores`, whose shapes are checked."""
        scores = self.scores(context)
        for modality, score in scores.items():
            expected = context.tokens[modality].shape[:2]
            if score.shape != expected:
                raise UserError(
                    f"The score {type(self).__name__} gives {tuple(score.shape)} for {modality}, but one number "
                    f"for each patch was expected, {tuple(expected)}; correct its method score."
                )
        return scores

    def scores(self, context: Context) -> ByModality:
        """`score` of every modality. A score of all together overrides this one."""
        return {
            modality: self.score(tokens, context.of(modality))
            for modality, tokens in context.tokens.items()
        }

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        """tokens (B, N, C) of `context.modality` → (B, N), the best highest."""
        raise NotImplementedError(f"{type(self).__name__} defines neither score nor scores.")

    def pseudo_masks(self, context: Context, shared: bool) -> ByModality:
        """Masks (B, N) of the whole grid, made of the images, for a forward in training that is given none; {} for none."""
        return {}

    def loss(self, scores: ByModality, context: Context) -> torch.Tensor | None:
        """A loss of the scores (B, N) in training, a scalar with its weight; None for none."""
        return None

    def merge(
        self,
        tokens: Tokens,
        slimmed: Tokens,
        score: torch.Tensor,
        decision: torch.Tensor,
        context: Context,
    ) -> Tokens:
        """What slimming does with the patches it drops, with MODEL.SLIM_MERGE: `tokens` with n patches, and `slimmed` with the
        kept of them, have the rows of all modalities, as `score` and `decision` (B, n), 1 for a kept patch and 0 for another.

        By default the mean of the dropped patches, weighted by the softmax of their scores, is an extra token.
        """
        # Not by `mean_of_dropped`, which loses dropped patches that are far below the best, as logits can be.
        logits = score.float().masked_fill(decision > 0, -torch.inf).unsqueeze(1)
        return slimmed.with_extra(softmax_mean(tokens.patches(score.shape[1]), logits))
