"""What is known of one forward of a model: the images of all modalities, which keep the same patches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from demo_sdtps.modeling.modalities import ByModality, Grid, split_rows
from demo_sdtps.modeling.slimming.scores.saliency import saliency
from demo_sdtps.modeling.slimming.stage import Window, patch_shares
from demo_sdtps.modeling.slimming.state import UNNAMED, State
from demo_sdtps.runtime.errors import UserError


@dataclass(eq=False)
class Batch:
    """The images of one call of a tower's patch convolution, on their way through its blocks."""

    states: list[State]  # before the first stage, and after each
    next_block: int = 0
    # With `restore`: the whole grid (B, N, C) at each stage, and by block the extra tokens (B, E, C) that its input lacks.
    grids: list[torch.Tensor] = field(default_factory=list)
    extras: dict[int, torch.Tensor] = field(default_factory=dict)
    # By block, what tells its input from others.
    inputs: dict[int, Any] = field(default_factory=dict)
    leads: bool = False  # whether the others keep what it keeps


@dataclass(eq=False)
class Call:
    """A forward of the module `by`, a model or a tower; None once it has ended, and for a method of a tower."""

    by: nn.Module | None = None
    images: ByModality = field(default_factory=dict)  # by the names of the arguments
    foreground: torch.Tensor | None = None
    batches: dict[int, list[Batch]] = field(default_factory=dict)  # by tower
    current: Batch | None = None  # of the block that runs
    modalities: list[str] = field(default_factory=list)  # of the batches so far
    saliency: dict[tuple, torch.Tensor] = field(default_factory=dict)  # sums by the images
    scores: dict[tuple, torch.Tensor] = field(default_factory=dict)  # by stage, of who leads
    losses: list[torch.Tensor] = field(default_factory=list)

    def name(self, images: torch.Tensor, names: tuple[str, ...]) -> str:
        """The modality of images of a host that encodes `names` in this order: that of the argument, for others the next."""
        # A second image of a modality has its name with a number.
        known = [
            name
            for key, image in self.images.items()
            for name in names
            if image is images and key.startswith(name)
        ]
        rest = [name for name in names if name not in self.modalities]
        self.modalities.append([*known, *rest, *names][0])
        return self.modalities[-1]

    def shared_saliency(
        self,
        images: torch.Tensor,
        window: Window,
        grid: Grid,
        names: tuple[str, ...],
        absent: frozenset[str],
    ) -> torch.Tensor | None:
        """The sum (B, N) of the saliency of those of the forward's images that are alike, None for a single one; those of the
        `absent` modalities have no vote."""
        alike = {
            name: image
            for name, image in self.images.items()
            if image.shape[1:] == images.shape[1:] and (name in names or names == UNNAMED)
        }
        if len({image.shape[0] for image in alike.values()}) > 1:
            alike = {n: image for n, image in alike.items() if image.shape[0] == images.shape[0]}
        voters = {name: image for name, image in alike.items() if name not in absent}
        if len(alike) < 2 or not voters:
            return None
        key = grid, window, *voters
        if key not in self.saliency:
            each = saliency(voters, *window, grid).values()
            self.saliency[key] = torch.stack(list(each)).sum(dim=0)
        total = self.saliency[key]
        # A host that stacks them has all in one batch.
        batch, triplets = images.shape[0], total.shape[0]  # tensors in torch.jit.trace
        return None if batch % triplets else total.repeat(batch // triplets, 1)

    def foreground_shares(
        self, images: torch.Tensor, window: Window, names: tuple[str, ...]
    ) -> ByModality:
        """`patch_shares` (B, N) of the masks, which the images of all modalities have in common; {} for none."""
        masks = self.foreground
        if masks is None:
            return {}
        if masks.shape[1:] != (1, *images.shape[-2:]) or len(images) % len(masks):
            raise UserError(
                f"foreground is {tuple(masks.shape)} for images {tuple(images.shape)}; give masks "
                "(B, 1, H, W) of the size of the images."
            )
        shares = patch_shares(masks.to(images), *window)
        return split_rows(shares.repeat(len(images) // len(masks), 1), names)


def find_images(inputs: Any, name: str = "") -> ByModality:
    """The images (B, C, H, W) of floating point in nested arguments, by their innermost names."""
    if isinstance(inputs, torch.Tensor):
        return {name: inputs} if inputs.ndim == 4 and inputs.is_floating_point() else {}
    if isinstance(inputs, (list, tuple)):
        inputs = {f"{name}{number}": value for number, value in enumerate(inputs)}
    images: ByModality = {}
    for key, value in inputs.items() if isinstance(inputs, Mapping) else ():
        images |= find_images(value, str(key))
    return images


def is_recomputed() -> bool:
    """Whether autograd runs, which computes blocks again under checkpointing."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def address(values: torch.Tensor) -> Any:
    """What tells tensors that exist at the same time; None where no backward pass computes them again."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(values):
        return None
    if not torch.is_grad_enabled():
        return None
    return values.untyped_storage()._cdata, int(values.storage_offset())
