"""How many patches stages may keep within a share of the operations of the dense model (docs/slim.md)."""

from collections.abc import Sequence

from demo_sdtps.modeling.slimming.towers import Tower
from demo_sdtps.runtime.errors import UserError


def plan_counts(
    operations: float, towers: Sequence[Tower], blocks: Sequence[int], merge: bool, patches: int
) -> tuple[int, ...]:
    """Patches of a grid of `patches` that stages before `blocks` leave, all k / `patches` of those before it, with the largest
    k for which the towers take at most the share `operations`; with `merge` each stage adds a token."""
    dense = _macs(towers, {}, merge, patches)
    share = lambda k: _macs(towers, _counts(blocks, patches, k), merge, patches) / dense  # noqa: E731
    low, high = 0, patches  # k is at least `low` and at most `high`
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if share(middle) <= operations else (low, middle - 1)
    if not low:
        raise UserError(
            f"operations is {operations:g}, but {share(1):.3f} of them are left where one patch is kept after block "
            f"{blocks[0]}; raise it, or drop patches after an earlier block."
        )
    return tuple(_counts(blocks, patches, low).values())


def _counts(blocks: Sequence[int], patches: int, k: int) -> dict[int, int]:
    """Patches that are left, by the block after the stage; rounded up."""
    counts, left = {}, patches
    for block in blocks:
        counts[block] = left = -(-left * k // patches)
    return counts


def _macs(towers: Sequence[Tower], counts: dict[int, int], merge: bool, patches: int) -> int:
    """Multiply-accumulates of an image in the patch convolutions and the blocks."""
    total = 0
    for tower in towers:
        left, others = patches, tower.prefix_count + tower.suffix
        total += patches * tower.patches.weight.numel()
        for index, block in enumerate(tower.blocks):
            others += merge and counts.get(index, left) < left
            left = counts.get(index, left)
            tokens = left + others
            weights = sum(weight.numel() for weight in block.parameters() if weight.ndim > 1)
            total += tokens * weights + 2 * tokens**2 * tower.patches.out_channels
    return total
