"""What is known of one forward of a model: the images of all modalities, which keep the same patches."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from demo_sdtps.modeling.modalities import ByModality, Grid, split_rows
from demo_sdtps.runtime.errors import UserError
from vit_slim.scores import saliency
from vit_slim.stage import Window, patch_shares
from vit_slim.state import UNNAMED, State

STEM = -1  # in place of the index of a block: the patch convolution


@dataclass(eq=False)
class Batch:
    """The images of one call of a tower's patch convolution, on their way through its blocks."""

    states: list[State] = field(default_factory=list)  # before the first stage, and after each
    next_block: int = 0
    # With `restore`: the whole grid (B, N, C) at each stage, and by block the extra tokens (B, E, C) that its input lacks.
    grids: list[torch.Tensor] = field(default_factory=list)
    extras: dict[int, torch.Tensor] = field(default_factory=dict)
    leads: bool = False  # whether the others keep what it keeps


class Visit(NamedTuple):
    """A batch at a block of a tower, or at its patch convolution, which the backward pass may compute again."""

    tower: int
    block: int
    address: Any  # of the input
    node: int  # number of the first node in the autograd graph that it can have
    batch: Batch


@dataclass(eq=False)
class Call:
    """A forward of the module `by`, a model or a tower; None once it has ended, and for a method of a tower."""

    by: nn.Module | None = None
    images: list[tuple[str, torch.Tensor]] = field(default_factory=list)  # names of arguments
    foreground: torch.Tensor | None = None
    batches: dict[int, list[Batch]] = field(default_factory=dict)  # under way, by tower
    finished: set[int] = field(default_factory=set)  # towers that a batch has left
    visits: list[Visit] = field(default_factory=list)  # in their order
    # Of what the backward pass computes again: its place there, and the index of the last visit.
    region: tuple[Any, int] = None, -1
    current: Batch | None = None  # of the block that runs
    modalities: list[str] = field(default_factory=list)  # of the batches so far
    saliency: dict[tuple, torch.Tensor] = field(default_factory=dict)  # sums by the images
    scores: dict[tuple, torch.Tensor] = field(default_factory=dict)  # by stage, of who leads
    losses: list[torch.Tensor] = field(default_factory=list)

    def visit(self, tower: int, block: int, batch: Batch, values: torch.Tensor) -> None:
        """Note that a batch is at a block, whose input is `values`, where the backward pass may compute it again."""
        if is_checkpointed(values):
            # The patch convolution has run.
            node = torch._C._autograd._get_sequence_nr() - (block == STEM)
            self.visits.append(Visit(tower, block, address(values), node, batch))

    def recompute(self, tower: int, block: int, values: torch.Tensor) -> Batch:
        """The batch that the backward pass computes again from this block on, or goes on to compute. Reentrant checkpointing
        detaches the inputs of what it computes again, and so loses the gradients of dropped patches."""
        node: Any = torch._C._current_autograd_node()
        if "CheckpointFunction" in node.name():
            raise UserError(
                "A slimmed model is computed again by reentrant checkpointing; use checkpointing with use_reentrant=False."
            )
        place = torch._C._current_graph_task_id(), node._sequence_nr()
        visits, last = self.visits, self.region[1] if self.region[0] == place else -1
        # A function that is computed again goes on as it did. It begins with an input that is still there, whose address no
        # later one has but itself, so that of these visits it is the last before what the backward pass needs.
        visit = last + 1
        goes_on = 0 < visit < len(visits) and visits[visit][:2] == (tower, block)
        if not goes_on:
            key = tower, block, address(values)
            same = [n for n, one in enumerate(visits) if one[:3] == key and one.node <= place[1]]
            visit = max(same, default=-1)
            if visit < 0:
                raise UserError(
                    "Checkpointing computes again a forward that is not the last of the slimmed model, or a function whose "
                    "argument is neither the images nor the input of a block; call backward after each forward, or leave "
                    "checkpointing off."
                )
            if visit <= last:
                raise UserError(
                    "Checkpointing computes again a function in which the slimmed model encodes the same tensor twice; "
                    "checkpoint each of these calls by itself."
                )
        self.region = place, visit
        return visits[visit].batch

    def name(self, images: torch.Tensor, names: tuple[str, ...]) -> str:
        """The modality of images of a host that encodes `names` in this order: that of the argument, for others the next."""
        # A second image of a modality has its name with a number.
        known = [
            name
            for key, image in self.images
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
            number: image
            for number, (name, image) in enumerate(self.images)
            if image.shape[1:] == images.shape[1:] and (name in names or names == UNNAMED)
        }
        sizes = [image.shape[0] for image in alike.values()]  # symbols in torch.export: no set
        if any(size != sizes[0] for size in sizes):
            batch = images.shape[0]
            alike = {key: image for key, image in alike.items() if image.shape[0] == batch}
        voters = {
            str(key): image for key, image in alike.items() if self.images[key][0] not in absent
        }
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


def find_images(inputs: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    """The images (B, C, H, W) of floating point in nested arguments, with their innermost names, of which some may be equal."""
    if isinstance(inputs, torch.Tensor):
        return [(name, inputs)] if inputs.ndim == 4 and inputs.is_floating_point() else []
    if isinstance(inputs, (list, tuple)):
        inputs = {f"{name}{number}": value for number, value in enumerate(inputs)}
    items = inputs.items() if isinstance(inputs, Mapping) else ()
    return [image for key, value in items for image in find_images(value, str(key))]


def is_running(module: nn.Module) -> bool:
    """Whether a forward of `module` is under way; torch tells no hook of one that Ctrl-C ended."""
    if torch.compiler.is_compiling():
        return True
    frame: FrameType | None = sys._getframe()
    while frame and not (
        "_call_impl" in frame.f_code.co_name and frame.f_locals.get("self") is module
    ):
        frame = frame.f_back
    return frame is not None


def is_recomputed() -> bool:
    """Whether autograd runs, which computes blocks again under checkpointing."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def is_checkpointed(values: torch.Tensor) -> bool:
    """Whether the backward pass may compute again what runs now on `values`: hooks save its tensors, as checkpointing does."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(values):
        return False
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # torch 2.8
    return hooks is None or hooks(True) is not None


def address(values: torch.Tensor) -> Any:
    """What tells tensors that exist at the same time."""
    return values.untyped_storage()._cdata, int(values.storage_offset())
