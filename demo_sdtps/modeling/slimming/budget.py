"""How many patches stages may keep within a share of the operations of the dense model (docs/slim.md)."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from demo_sdtps.modeling.slimming.towers import Tower
from demo_sdtps.runtime.errors import UserError


@dataclass(frozen=True)
class Budget:
    """`operations` is the share that the towers may take with stages before `blocks`; with `merge` each adds a token."""

    operations: float
    blocks: tuple[int, ...]
    merge: bool
    # By tower: weights of the patch convolution and of each block, channels, tokens beside the patches.
    towers: tuple[tuple[int, tuple[int, ...], int, int], ...]

    @lru_cache(maxsize=64)  # noqa: B019 (equal budgets share the entries)
    def counts(self, patches: int) -> tuple[int, ...]:
        """Patches of a grid that each stage leaves, all k / `patches` of those before it, with the largest k that fits."""
        dense = self.macs(patches, patches)
        share = lambda k: self.macs(patches, k) / dense  # noqa: E731
        k = bisect_right(range(1, patches + 1), self.operations, key=share)
        if not k:
            raise UserError(
                f"operations is {self.operations:g}, but {share(1):.3f} of them are left where one patch is kept after block "
                f"{self.blocks[0]}; raise it, or drop patches after an earlier block."
            )
        return self._counts(patches, k)

    def macs(self, patches: int, k: int) -> int:
        """Multiply-accumulates of an image in the patch convolutions and the blocks."""
        kept, total = dict(zip(self.blocks, self._counts(patches, k), strict=True)), 0
        for convolution, blocks, channels, others in self.towers:
            total += patches * convolution
            left = patches
            for index, weights in enumerate(blocks):
                others += self.merge and kept.get(index, left) < left
                left = kept.get(index, left)
                tokens = left + others
                total += tokens * weights + 2 * tokens**2 * channels
        return total

    def _counts(self, patches: int, k: int) -> tuple[int, ...]:
        counts = [patches]
        for _ in self.blocks:
            counts.append(-(-counts[-1] * k // patches))  # rounded up
        return tuple(counts[1:])


def make_budget(
    operations: float, towers: Sequence[Tower], blocks: Sequence[int], merge: bool
) -> Budget:
    costs = []
    for tower in towers:
        weights = (
            sum(weight.numel() for weight in block.parameters() if weight.ndim > 1)
            for block in tower.blocks
        )
        stem, others = tower.patches, tower.prefix_count + tower.suffix
        costs.append((stem.weight.numel(), tuple(weights), stem.out_channels, others))
    return Budget(operations, tuple(blocks), merge, tuple(costs))
