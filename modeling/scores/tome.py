"""Token merging (ToMe; Bolya et al., ICLR 2023): patches that are much alike become one."""
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from demo_sdtps.modeling.scores.base import Context, Score
from demo_sdtps.modeling.tokens import Tokens
from demo_sdtps.runtime.errors import UserError

FARTHEST = 2.0  # 1 - cosine of opposite keys


def matching(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bipartite soft matching of keys (..., n, D), without gradient: every second patch from the first on is in the set A, the
    others in B. → 1 - the largest cosine of each of A with one of B, (..., A) float32, and that one's place among the n,
    (..., A) int64."""
    with torch.no_grad(), torch.autocast(keys.device.type, enabled=False):
        unit = F.normalize(keys.float(), dim=-1)
        closest, partner = (unit[..., ::2, :] @ unit[..., 1::2, :].transpose(-2, -1)).max(dim=-1)
        return 1 - closest, 2 * partner + 1


class ToMe(Score):
    """Patches of A are dropped, the nearest to their partners in B first (`matching`), and merged into them by a mean weighted
    with the number of patches that each stands for. These numbers also weigh the tokens in attention (`Tokens.sizes`).

    Needs `Context.keys`. Where all modalities keep the same positions, the partners are still each modality's own. At most half
    of the patches can be dropped at once: raises `UserError` for a share of MODEL.SLIM_KEEP below 0.5.
    """

    needs_keys = needs_sizes = True

    def __init__(self, width: int, grid: tuple[int, int], keep: Sequence[float] = (), **settings: object):
        super().__init__(width, grid, **settings)
        if min(keep, default=1.0) < 0.5:
            raise UserError(f"MODEL.SLIM_KEEP is {list(keep)}, but MODEL.SLIM_SCORE 'tome' can merge at most half of the "
                            "patches at a block; keep 0.5 or more, and drop more by more MODEL.SLIM_BLOCKS.")

    def score(self, tokens: torch.Tensor, context: Context) -> torch.Tensor:
        keys = context.keys[context.modality]
        # All of B are kept.
        score = torch.full(keys.shape[:-1], FARTHEST + 1, device=keys.device)
        if keys.shape[-2] > 1:
            score[..., ::2] = matching(keys)[0]
        return score

    def merge(self, tokens: Tokens, slimmed: Tokens, score: torch.Tensor, decision: torch.Tensor, context: Context) -> Tokens:
        count, left = score.shape[1], slimmed.positions.shape[1]  # type: ignore[union-attr]  # a stage sets the positions
        kept, goal = decision > 0, torch.arange(count, device=score.device).repeat(score.shape[0], 1)
        goal[:, ::2] = torch.where(kept[:, ::2], goal[:, ::2], matching(torch.cat(list(context.keys.values())))[1])
        slot = (kept.cumsum(dim=1) - 1).gather(1, goal)  # place among the kept of the patch that each becomes part of
        # There is no extra token: the patches are the last tokens.
        sizes = torch.ones_like(score) if tokens.sizes is None else tokens.sizes[:, -count:]
        with torch.autocast(score.device.type, enabled=False):
            # A matrix product is deterministic on every device, which a scatter that adds is not.
            shares = (slot.unsqueeze(1) == torch.arange(left, device=slot.device).unsqueeze(-1)) * sizes.unsqueeze(1)
            merged = shares.sum(dim=-1)
            patches = shares @ tokens.patches(count).float() / merged.unsqueeze(-1)
        values = torch.cat([slimmed.values[:, :-left], patches.to(slimmed.values.dtype)], dim=1)
        return replace(slimmed, values=values, sizes=F.pad(merged, (values.shape[1] - left, 0), value=1.0))
