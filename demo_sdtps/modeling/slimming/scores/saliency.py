"""Contrast of a patch's colour with the picture's border: a score of the images alone, without weights (docs/method.md)."""

import torch
import torch.nn.functional as F

from demo_sdtps.modeling.modalities import ByModality, Grid, split_rows
from demo_sdtps.modeling.sdtps import no_autocast
from demo_sdtps.modeling.slimming.scores.base import Context, Score

NEAREST = 3  # a patch at the border is itself its nearest
ROUNDS = 6


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
    distances are the costs between neighbours → (B, N).

    Every round goes along all rows and columns in both directions, so that ways have up to ROUNDS · 2 turns.
    """
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
