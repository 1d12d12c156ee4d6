"""The score of patches that has a name: `saliency` of the images (docs/method.md)."""

import torch
import torch.nn.functional as F

from vit_slim.stage import Grid, Score, State

NEAREST = 3  # a patch at the border is itself its nearest
ROUNDS = 6  # of `geodesic`


class Saliency(Score):
    """`saliency` of the images, summed over those that keep the same places."""

    reads_saliency = True

    def score(self, tokens: torch.Tensor, context: State) -> torch.Tensor:
        return context.saliency.gather(1, context.places(tokens))


@torch.no_grad()
def saliency(
    images: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], grid: Grid
) -> torch.Tensor:
    """How far a patch's mean colour is from the border's, and how far a way over the grid leads away from it: images
    (B, 3, H, W) → (B, N) float32, without gradient. Patches of `size` pixels stand at steps of `stride`.

    The border is background where a picture is a crop around its object, and background is connected with it (Wei et al.,
    Geodesic saliency using background priors, ECCV 2012). With d_i the distance of patch i to the third nearest of the border's
    colours, the score is d_i + min over ways from border patches b to i of d_b + the sum of the distances of neighbours on it.
    """
    rows, columns = grid
    colours = F.avg_pool2d(images.float(), size, stride).permute(0, 2, 3, 1)
    # Each corner once; a grid of one row or column has it on one side alone.
    sides = colours[:, :1], colours[:, 1:-1, :: max(1, columns - 1)], colours[:, 1:][:, -1:]
    border = torch.cat([side.flatten(1, 2) for side in sides], dim=1).unsqueeze(1)
    distances = (colours.flatten(1, 2).contiguous().unsqueeze(2) - border).norm(dim=-1)
    nearest = distances.topk(min(NEAREST, border.shape[2]), largest=False).values[..., -1]
    # No way begins inside.
    inside = colours.new_full((max(0, rows - 2), max(0, columns - 2)), torch.inf)
    start = nearest.unflatten(1, grid) + F.pad(inside, (1, 1, 1, 1))[:rows, :columns]
    return nearest + geodesic(start, colours).flatten(1)


def geodesic(cost: torch.Tensor, colours: torch.Tensor) -> torch.Tensor:
    """Cheapest way to every patch: the cost (B, rows, columns) to begin at a patch, inf for none, and colours
    (B, rows, columns, 3), whose distances are the costs between neighbours → (B, rows, columns). Every round goes along all
    columns and rows in both directions, so that ways have up to ROUNDS · 2 turns."""
    # Along a line with the sums S of its steps, the cheapest way to x is min over y of cost(y) + |S(x) - S(y)|.
    ways = []
    for dim, first in ((1, (0, 0, 1, 0)), (2, (1, 0))):
        count = colours.shape[dim] - 1
        steps = colours.narrow(dim, 1, count) - colours.narrow(dim, 0, count)
        sums = F.pad(steps.norm(dim=-1), first).cumsum(dim).transpose(dim, 2)
        ways.append((sums.unsqueeze(-1) - sums.unsqueeze(-2)).abs())
    for lengths in ROUNDS * ways:
        cost = (cost.transpose(1, 2).unsqueeze(-2) + lengths).amin(dim=-1)
    return cost


SCORES: dict[str, type[Score]] = {"saliency": Saliency}
"""By the names that `slim` and MODEL.SLIM_SCORE know."""
