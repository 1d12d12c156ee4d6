"""The scores of patches that have a name: `saliency` of the images, and one that learns from it (docs/method.md)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from vit_slim.stage import Context, Score
from vit_slim.state import UNNAMED, ByName, Grid, no_autocast, split_rows

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
def saliency(images: ByName, size: tuple[int, ...], stride: tuple[int, ...], grid: Grid) -> ByName:
    """How far a patch's mean colour is from the border's, and how far a way over the grid leads away from it: images
    (B, 3, H, W) → (B, N) float32 by name, without gradient. Patches of `size` pixels stand at steps of `stride`.

    The border is background where a picture is a crop around its object, and background is connected with it (Wei et al.,
    Geodesic saliency using background priors, ECCV 2012). With d_i the distance of patch i to the third nearest of the border's
    colours, the score is d_i + min over ways from border patches b to i of d_b + the sum of the distances of neighbours on it.
    """
    # All names in one batch, as the way over the grid takes many small operations.
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


class SelfSupervised(Score):
    """LayerNorm → Linear(HIDDEN) → GELU → Linear(1) for the images of each name; its logit is the score.

    The loss is `loss_weight` times the binary cross-entropy against pseudo-masks, 0 for a missing image; its gradient reaches
    the backbone. A pseudo-mask has the patches whose saliency, summed over the images that keep the same places, is above
    Otsu's threshold.
    """

    def __init__(
        self,
        width: int,
        grid: Grid,
        loss_weight: float = 5.0,
        modalities: Sequence[str] = UNNAMED,
        **settings: object,
    ):
        super().__init__(width, grid, **settings)
        self.loss_weight = loss_weight
        self.heads = nn.ModuleDict()
        for name in modalities:
            layers = nn.LayerNorm(width), nn.Linear(width, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1)
            self.heads[name] = nn.Sequential(*layers)

    @property
    def reads_saliency(self) -> bool:
        return self.training

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        return self.heads[context.modality](tokens).squeeze(-1).float()

    def loss(self, scores: ByName, context: Context) -> torch.Tensor | None:
        state = context.state
        if not (self.training and state and state.saliency):
            return None
        if OTSU not in state.computed:
            state.computed[OTSU] = pseudo_masks(state.saliency, state.shared)
        stack = lambda rows: torch.stack([rows[name] for name in scores])  # noqa: E731
        masks = state.computed[OTSU]
        kept = stack({name: masks[name].gather(1, context.places(name)) for name in scores})
        weights = 1.0 - stack(context.missing).float() if context.missing else None
        entropy = F.binary_cross_entropy_with_logits(stack(scores), kept.float(), weights)
        return self.loss_weight * entropy


def pseudo_masks(saliencies: ByName, shared: bool) -> ByName:
    """1 for a patch that is foreground by its saliency (B, N), with `shared` by the sum of all, else 0, (B, N) by name."""
    scores = torch.stack(list(saliencies.values()))
    if shared:
        return dict.fromkeys(saliencies, above_otsu(scores.sum(dim=0)))
    return split_rows(above_otsu(scores.flatten(0, 1)), saliencies)


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


SCORES: dict[str, type[Score]] = {"saliency": Saliency, "self_supervised": SelfSupervised}
"""By the names that `slim` and MODEL.SLIM_SCORE know."""
