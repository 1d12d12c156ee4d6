"""Scores of patches, by which slimming and SDTPS keep the best (docs/develop.md, base.py).

A new score is a subclass of `base.Score` and a line in SCORES; from outside the project its name is "package.module:Class".
"""

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from demo_sdtps.config.check import import_score
from demo_sdtps.config.common import MODALITIES
from demo_sdtps.modeling import sdtps
from demo_sdtps.modeling.modalities import ByModality, Grid, split_rows
from demo_sdtps.modeling.sdtps import cosines, no_autocast
from demo_sdtps.runtime.errors import UserError, nearest_name
from vit_slim.scores.base import Context, Score

if TYPE_CHECKING:
    from yacs.config import CfgNode

NEAREST = 3  # a patch at the border is itself its nearest
ROUNDS = 6  # of `geodesic`
OTSU = "otsu"  # in `State.computed`
HIDDEN = 64  # channels of the MLP; with 16 an earlier study gained 3.2 mAP in place of 5.9


class Saliency(Score):
    """`saliency` of the images, summed over those that keep the same places."""

    reads_saliency = True

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        assert context.state is not None
        return context.state.saliency[context.modality].gather(1, context.places(context.modality))


@torch.no_grad()
def saliency(
    images: ByModality, size: tuple[int, ...], stride: tuple[int, ...], grid: Grid
) -> ByModality:
    """How far a patch's mean colour is from the border's, and how far a way over the grid leads away from it: images
    (B, 3, H, W) → (B, N) float32 in the own modality, without gradient. Patches of `size` pixels stand at steps of `stride`.

    The border is background where a picture is a crop around its object, and background is connected with it (Wei et al.,
    Geodesic saliency using background priors, ECCV 2012). With d_i the distance of patch i to the third nearest of the border's
    colours, the score is d_i + min over ways from border patches b to i of d_b + the sum of the distances of neighbours on it.
    """
    # All modalities in one batch, as the way over the grid takes many small operations.
    rows = torch.cat(list(images.values()))
    border = border_places(grid, rows.device)
    with no_autocast(rows):
        means = F.avg_pool2d(rows.float(), size, stride)
        colours = means.flatten(2).transpose(1, 2)  # (B, N, 3)
        exactly = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(colours, colours[:, border], compute_mode=exactly)
        nearest = distances.kthvalue(min(NEAREST, len(border)), dim=-1).values
        start = torch.full_like(nearest, torch.inf).index_copy(1, border, nearest[:, border])
        score = nearest + geodesic(start, colours, grid)
    return split_rows(score, images)


def border_places(grid: Grid, device: torch.device) -> torch.Tensor:
    """The places at the border of a grid of (rows, columns), ascending, int64."""
    # By indices of a known number, as a mask would wait for the device.
    rows, columns = grid
    places = torch.arange(rows * columns, device=device).unflatten(0, grid)
    sides = places[1:-1, :: max(1, columns - 1)]
    return torch.cat([places[0], sides.flatten(), *([places[-1]] if rows > 1 else [])])


def geodesic(start: torch.Tensor, colours: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Cheapest way to every patch: start (B, N), the cost to begin at a patch, inf for none, and colours (B, N, 3), whose
    distances are the costs between neighbours → (B, N). Every round goes along all rows and columns in both directions, so that
    ways have up to ROUNDS · 2 turns."""
    cost, colour_grid = start.unflatten(1, grid), colours.unflatten(1, grid)
    # Along a line with the sums S of its steps, the cheapest way to x is min over y of cost(y) + |S(x) - S(y)|.
    ways = {}
    for dim, first in ((1, (0, 0, 1, 0)), (2, (1, 0))):
        sums = F.pad(colour_grid.diff(dim=dim).norm(dim=-1), first).cumsum(dim).transpose(dim, 2)
        ways[dim] = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).abs()
    for _ in range(ROUNDS):
        for dim, lengths in ways.items():
            lines = cost.transpose(dim, 2).unsqueeze(-2)
            cost = (lines + lengths).amin(dim=-1).transpose(dim, 2)
    return cost.flatten(1)


class Distinctness(Score):
    """1 - cos(x_i, mean_j x_j) in the own modality, float32 in [0, 2], without gradient: the background is most of a picture
    and much alike, so that the mean is near to it."""

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return 1 - cosines(tokens, tokens.detach().float().mean(dim=-2).unsqueeze(0))[0]


class SDTPSScore(Score):
    """(1 - 2β)·MLP + β·Σ weight·guidance, the published score, guided by the class tokens; an MLP per modality. Missing
    modalities do not guide."""

    def __init__(
        self,
        width: int,
        grid: Grid,
        beta: float = 0.25,
        modalities: Sequence[str] = MODALITIES,
        **settings: Any,
    ):
        super().__init__(width, grid, **settings)
        self.beta = beta
        self.score_predictor = nn.ModuleDict({name: sdtps.score_mlp(width) for name in modalities})

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        guides = context.global_feats
        weights = sdtps.guide_weights(context.modality, guides, context.missing)
        guidance = sdtps.cosine_guidance(tokens, torch.stack([guides[guide] for guide in weights]))
        predicted = sdtps.predict(self.score_predictor[context.modality], tokens)
        return sdtps.guided_score(predicted, guidance, weights.values(), self.beta)


class Supervised(Score):
    """LayerNorm → Linear(HIDDEN) → GELU → Linear(1) by modality; its logit is the score. The loss is `loss_weight`
    (MODEL.SLIM_LOSS_WEIGHT) times the binary cross-entropy against the patch's share of the foreground (`State.foreground`), 0
    for a missing image; its gradient reaches the backbone."""

    masks = True

    def __init__(
        self,
        width: int,
        grid: Grid,
        loss_weight: float = 5.0,
        modalities: Sequence[str] = MODALITIES,
        **settings: object,
    ):
        super().__init__(width, grid, **settings)
        self.loss_weight = loss_weight
        self.heads = nn.ModuleDict()
        for modality in modalities:
            layers = nn.LayerNorm(width), nn.Linear(width, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1)
            self.heads[modality] = nn.Sequential(*layers)

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.heads[context.modality](tokens).squeeze(-1).float()

    def loss(self, scores: ByModality, context: Context) -> torch.Tensor | None:
        foreground = self.foreground(context) if self.training else {}
        if not foreground:
            return None
        shares = context.at_places(foreground)
        stack = lambda rows: torch.stack([rows[modality] for modality in scores])  # noqa: E731
        weights = 1.0 - stack(context.missing).float() if context.missing else None
        entropy = F.binary_cross_entropy_with_logits(stack(scores), stack(shares).float(), weights)
        return self.loss_weight * entropy

    def foreground(self, context: Context) -> ByModality:
        """Shares (B, N) of the whole grid that the loss compares with; {} for none."""
        return context.state.foreground if context.state else {}


class SelfSupervised(Supervised):
    """`Supervised` by pseudo-masks where no masks are given: the patches whose saliency (`Saliency`), summed over the
    modalities where these keep the same places, is above Otsu's threshold."""

    masks = False

    @property
    def reads_saliency(self) -> bool:
        return self.training

    def foreground(self, context: Context) -> ByModality:
        state = context.state
        assert state is not None
        if state.foreground:
            return state.foreground
        if OTSU not in state.computed:
            scores = torch.stack(list(state.saliency.values()))
            if state.shared:
                masks = dict.fromkeys(state.saliency, above_otsu(scores.sum(dim=0)))
            else:
                masks = split_rows(above_otsu(scores.flatten(0, 1)), state.saliency)
            state.computed[OTSU] = masks
        return state.computed[OTSU]


def above_otsu(score: torch.Tensor) -> torch.Tensor:
    """score (B, N) → 1 above the threshold that makes the variance between both sides largest, else 0, (B, N) (Otsu, 1979)."""
    ordered, count = score.double().sort(dim=1).values, score.shape[1]
    below = torch.arange(1, count, device=score.device)  # numbers of patches below each threshold
    total = ordered.cumsum(dim=1)
    low, high = total[:, :-1] / below, (total[:, -1:] - total[:, :-1]) / (count - below)
    between = below * (count - below) * (high - low).square()
    # The last threshold divides nothing, as a single patch cannot be divided.
    best = F.pad(between, (0, 1)).argmax(dim=1, keepdim=True)
    return (score > ordered.gather(1, best)).to(score.dtype)


SCORES: dict[str, type[Score]] = {
    "distinctness": Distinctness,
    "saliency": Saliency,
    "sdtps": SDTPSScore,
    "supervised": Supervised,
    "self_supervised": SelfSupervised,
}
SETTINGS = ("keep", "modalities", "beta", "loss_weight")
"""What the constructor of a score is given by name, after the tokens' width and the grid."""


def is_cast(score: Score) -> bool:
    """Whether the linear layers of a score run under autocast alone, as those of SCORES: one of the user's may leave it."""
    return type(score) in SCORES.values()


def score_class(name: str) -> type[Score]:
    """The class that MODEL.SLIM_SCORE names; `UserError` for one of the user's that is no score."""
    if name in SCORES:
        return SCORES[name]
    if ":" not in name:
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, but it must be {' or '.join(map(repr, SCORES))}, or package.module:Class of your "
            f"own{nearest_name(name, SCORES)}."
        )
    score = import_score(name)
    if not (isinstance(score, type) and issubclass(score, Score)):
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, which is no score; give a subclass of {Score.__module__}.Score."
        )
    try:
        signature(score).bind("width", "grid", **dict.fromkeys(SETTINGS))
    except TypeError as error:
        raise UserError(
            f"MODEL.SLIM_SCORE is {name!r}, whose constructor cannot be given width, grid, and by name {', '.join(SETTINGS)} "
            f"({error}); take those that it reads, and the others as **settings (docs/develop.md)."
        ) from None
    return score


def make_score(
    name: str, cfg: "CfgNode", width: int, grid: Grid, modalities: Sequence[str] = MODALITIES
) -> Score:
    """The score `name` for tokens of `width` channels on a grid of (rows, columns) patches, with the settings of `cfg`."""
    model = cfg.MODEL
    settings = {"keep": tuple(model.SLIM_KEEP), "modalities": modalities}
    weights = {"beta": model.SDTPS_BETA, "loss_weight": model.SLIM_LOSS_WEIGHT}
    return score_class(name)(width, grid, **settings, **weights)
