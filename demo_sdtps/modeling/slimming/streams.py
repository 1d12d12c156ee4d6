"""Streams: the way of images through the blocks of a Vision Transformer, and the stages that its hooks run on them.

The images of one forward keep patches together, or each stream keeps its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch

from demo_sdtps.modeling.modalities import split_rows
from demo_sdtps.modeling.slimming.scores.base import Context, Score
from demo_sdtps.modeling.slimming.stage import BlockInput, Slimming
from demo_sdtps.modeling.slimming.tokens import Tokens, scatter_tokens

UNNAMED = ("image",)
"""The modality of a model that has no names for them."""
FIRST = "first"


@dataclass(eq=False)
class ForwardPass:
    """One forward of a model in one thread, or of a tower alone where a method of the model was called (not `is_whole`)."""

    slimming: StreamSlimming  # of a replica of nn.DataParallel its own
    is_whole: bool
    inputs: Mapping[str, torch.Tensor]  # images by the names of the arguments
    foreground: torch.Tensor | None
    losses: list[torch.Tensor]
    streams: dict[int, list[Stream]] = field(default_factory=lambda: defaultdict(list))  # by tower
    modalities: list[str] = field(default_factory=list)  # of the streams so far
    shared_scores: dict[tuple, torch.Tensor] = field(default_factory=dict)


@dataclass(eq=False)
class Stream:
    """The way of images through the blocks of a tower."""

    slimming: StreamSlimming
    names: tuple[str, ...]  # modalities of the rows
    images: Callable[[], torch.Tensor | None]  # (B, 3, H, W); of a record a weak reference
    known: Context  # what a score reads of the images, without them
    next_block: int
    stages: list[Tokens] = field(default_factory=list)  # after each stage, without their channels
    # (B, n) of each stage, without a graph; None: of weights that learn, which compute it again.
    scores: list[torch.Tensor | None] = field(default_factory=list)
    grids: list[torch.Tensor] = field(default_factory=list)  # (B, N, C) at each stage, to restore
    # (B, E, C) extra tokens that a restored output lacks, by the number of the block that they go to
    extras: dict[int, torch.Tensor] = field(default_factory=dict)
    record: Stream | None = None  # the same without a graph; of a stream computed again None

    def context(self) -> Context:
        """What a score reads of the images."""
        images = self.images()
        return replace(self.known, images={} if images is None else split_rows(images, self.names))


class StreamSlimming(Slimming):
    """Stages whose input is the tokens of a stream.

    `follow`: True, a score of images alone is summed over those of a forward; "first", all streams of a forward keep what the
    first keeps; False, each keeps its own. `names` are the modalities in the order in which the host encodes them; with
    `is_stacked` one call encodes all. `missing` ones have no vote in evaluation.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        keep: Sequence[float],
        scores: Sequence[Score],
        merge: bool = True,
        restore: bool = False,
        follow: bool | str = True,
        names: Sequence[str] = UNNAMED,
        is_stacked: bool = False,
        missing: frozenset[str] = frozenset(),
    ):
        super().__init__(blocks, keep, scores, merge, shared=bool(follow))
        self.restore, self.follow = restore, follow
        self.names, self.is_stacked, self.missing = tuple(names), is_stacked, missing

    @property
    def absent(self) -> frozenset[str]:
        """The modalities that have no vote now."""
        return frozenset() if self.training else self.missing

    def names_of(self, now: ForwardPass, images: torch.Tensor) -> tuple[str, ...]:
        """The modalities that the rows of images are of: those of the model's inputs, and for others the next in order."""
        if len(self.names) == 1:
            return self.names
        if self.is_stacked:
            present = tuple(name for name in self.names if name not in self.absent)
            batch = next(iter(now.inputs.values()), images).shape[0]
            return present if images.shape[0] == len(present) * batch else self.names
        # A second image of a modality has its name with a number.
        known = [
            name
            for key, image in now.inputs.items()
            for name in self.names
            if image is images and key.startswith(name)
        ]
        rest = (name for name in self.names if name not in now.modalities)
        name = [*known, *rest, *self.names][0]
        now.modalities.append(name)
        return (name,)

    def run_stage(
        self, number: int, stream: Stream, now: ForwardPass | None, inputs: BlockInput
    ) -> torch.Tensor:
        """Stage `number` on the tokens of a stream → the remaining values. Where the backward pass computes it again, `now` is
        None, and the stream keeps what it kept."""
        positions = inputs.tokens.grid_positions(prod(stream.known.grid))
        if self.restore:
            grid = inputs.tokens.patches(positions.shape[1])
            grid = scatter_tokens(stream.grids[-1], positions, grid) if number else grid.clone()
            stream.grids[number:] = [grid]
        score = self._shared_score(number, stream, now, positions) if now else stream.scores[number]
        weights = self.scores[number].parameters()
        learns = score is None and any(weight.requires_grad for weight in weights)
        tokens, kept, loss = self(number, inputs, stream.context(), score)
        if now is not None and stream.record is not None:
            now.losses += [] if loss is None else [loss]
            score = torch.cat(list(kept.score.values()))
            if self.follow == FIRST and stream.names[0] not in self.absent:
                now.shared_scores.setdefault((number, stream.known.grid), score)
            # Not a view, which would keep the graph, and by it what the record waits for to go.
            stream.stages.append(tokens.with_values(torch.empty_like(tokens.values[:0])))
            # Weights that learn are run again, so that autograd finds their tensors and dropout its random numbers.
            stream.scores.append(None if learns else without_graph(score))
            if self.restore and torch.is_grad_enabled():
                stream.record.grids.append(without_graph(grid))
        return tokens.values

    def _shared_score(
        self, number: int, stream: Stream, now: ForwardPass, positions: torch.Tensor
    ) -> torch.Tensor | None:
        """The score (B, n) of a stage that the streams of a forward share, None where each has its own."""
        if self.follow == FIRST:
            score = now.shared_scores.get((number, stream.known.grid))
        else:
            score = self._summed_score(number, stream, now)
        if score is None or positions.shape[0] % score.shape[0]:
            return None
        score = score.repeat(positions.shape[0] // score.shape[0], 1)
        return score if self.follow == FIRST else score.gather(1, positions)

    def _summed_score(self, number: int, stream: Stream, now: ForwardPass) -> torch.Tensor | None:
        """The sum (B, N) of a score of images alone over those inputs of the model that are alike, None for a single one."""
        scorer, context, images = self.scores[number], stream.known, stream.images()
        if not (self.follow and scorer.of_images) or self.is_stacked or images is None:
            return None
        alike = {
            name: image
            for name, image in now.inputs.items()
            if image.shape[1:] == images.shape[1:] and (name in self.names or self.names == UNNAMED)
        }
        rows = [image.shape[0] for image in alike.values()]
        if any(count != rows[0] for count in rows):
            alike = {n: image for n, image in alike.items() if image.shape[0] == images.shape[0]}
        voters = {name: image for name, image in alike.items() if name not in self.absent}
        if len(alike) < 2 or not voters:
            return None
        key = (number, context.grid, context.patch_size, context.patch_stride, *voters)
        if key not in now.shared_scores:
            tokens = {  # without channels
                name: image.new_empty(image.shape[0], prod(context.grid), 0)
                for name, image in voters.items()
            }
            scores = scorer.scores(replace(context, tokens=tokens, images=voters, missing={}))
            now.shared_scores[key] = torch.stack(list(scores.values())).sum(dim=0)
        return now.shared_scores[key]


def without_graph(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)
