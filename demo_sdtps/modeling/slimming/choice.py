"""What the stages keep in the streams of one forward of a slimmed Vision Transformer: which scores and sets they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import nn

from demo_sdtps.modeling.slimming.scores.base import Score
from demo_sdtps.modeling.slimming.stage import Slimming
from demo_sdtps.modeling.slimming.streams import KeptTokens, Pass, Stream
from demo_sdtps.modeling.slimming.tokens import Tokens, scatter_tokens
from demo_sdtps.modeling.slimming.towers import Layout
from demo_sdtps.runtime.errors import UserError

UNNAMED = ("image",)
"""The modality of a model that has no names for them."""
FIRST = "first"


class StreamSlimming(Slimming):
    """Stages for the streams of a forward.

    `follow`: True, a score of images alone is summed over those of a forward; "first", all streams of a forward keep what the
    first keeps; False, each keeps its own. `names` are the modalities in the order in which the host encodes them; with
    `is_stacked` one call encodes all. `missing` ones have no vote in evaluation. With `restore` a stream keeps every token as
    it was last.
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
        self.restore, self.follow, self.missing = restore, follow, missing
        self.names, self.is_stacked = tuple(names), is_stacked

    def choose(
        self,
        now: Pass | None,
        number: int,
        stream: Stream,
        layout: Layout,
        block: nn.Module,
        tokens: Tokens,
        rope: torch.Tensor | None,
    ) -> torch.Tensor:
        """Stage `number` → the values that are left."""
        values, positions = tokens.values, tokens.grid_positions(prod(stream.grid))
        prefix = int(values.shape[1]) - tokens.extra - int(positions.shape[1])
        if prefix < 0 or (layout.prefix is not None and prefix != layout.prefix):
            raise UserError(
                f"{type(block).__name__} gets {values.shape[1]} tokens where the grid has {positions.shape[1]} "
                f"patches, but prefix={layout.prefix} and suffix={layout.suffix} were expected around them; say "
                "by these how many tokens stand before and after the patches."
            )
        if self.restore:
            patches = tokens.patches(positions.shape[1])
            grid = (
                scatter_tokens(stream.grids[number - 1], positions, patches)
                if number
                else patches.clone()
            )
            stream.grids[number : number + 1] = [grid]
        slim = stream.slim
        is_trained = any(
            parameter.requires_grad for parameter in slim.stage_scores[number].parameters()
        )
        past = stream.chosen[number] if stream.record is stream else None
        score = past.score if past else self._shared_score(now, number, stream, positions)
        if past and not past.is_given and is_trained:
            score = None  # computed again, so that autograd finds its tensors and dropout its random numbers
        is_given = past.is_given if past else score is not None
        step = slim(number, tokens, stream.context(), stream.names, block, prefix, rope, score)
        # Not a view, which would keep the graph, and by it what the record waits for to go.
        places = replace(step.tokens, values=torch.empty_like(step.tokens.values[:0]))
        score = torch.cat(list(step.stage.score.values()))
        stream.chosen[number : number + 1] = [KeptTokens(places, score, is_given)]
        if now is not None and stream.record and not past:
            now.losses += [] if step.loss is None else [step.loss]
            if self.follow == FIRST and stream.names[0] not in stream.missing:
                now.first.setdefault((number, stream.grid), score)
            stream.record.chosen.append(KeptTokens(places, _without_graph(score), is_given))
            stream.record.grids += (
                [_without_graph(grid)] if self.restore and torch.is_grad_enabled() else []
            )
        return step.tokens.values

    def _shared_score(
        self, now: Pass | None, number: int, stream: Stream, positions: torch.Tensor
    ) -> torch.Tensor | None:
        """The score (B, n) of a stage that the streams of a forward share, None where each has its own."""
        scorer, images = stream.slim.stage_scores[number], stream.images()
        if now is None or images is None:
            return None
        key: tuple = (number, stream.grid)
        alike = {
            name: image
            for name, image in now.inputs.items()
            if image.shape[1:] == images.shape[1:] and (name in self.names or self.names == UNNAMED)
        }
        if len({len(image) for image in alike.values()}) > 1:
            alike = {name: image for name, image in alike.items() if len(image) == len(images)}
        voters = {name: image for name, image in alike.items() if name not in stream.missing}
        if (
            self.follow is True
            and scorer.of_images
            and len(alike) > 1
            and voters
            and not self.is_stacked
        ):
            key = (number, stream.grid, stream.size, stream.stride, *voters)
            if key not in now.first:
                no_tokens = {
                    name: image.new_empty(len(image), prod(stream.grid), 0)
                    for name, image in voters.items()
                }
                scores = scorer.scores(
                    replace(stream.context(), tokens=no_tokens, images=voters, missing={})
                )
                now.first[key] = torch.stack(list(scores.values())).sum(dim=0)
        score = now.first.get(key)
        if score is None or len(images) % len(score):
            return None
        score = score.repeat(len(images) // len(score), 1)
        return score if self.follow == FIRST else score.gather(1, positions)

    def names_of(self, now: Pass, images: torch.Tensor) -> tuple[str, ...]:
        """The modalities that the rows of images are of: those of the model's inputs, and for others the next in order."""
        if len(self.names) == 1:
            return self.names
        if self.is_stacked:
            present = tuple(name for name in self.names if name not in self.missing)
            batch = len(next(iter(now.inputs.values()), images))
            return (
                present
                if len(images) == len(present) * batch and not now.slim.training
                else self.names
            )
        # A second image of a modality has its name with a number.
        matching = [
            known
            for key, image in now.inputs.items()
            for known in self.names
            if image is images and key.startswith(known)
        ]
        name = [*matching, *(other for other in self.names if other not in now.named), *self.names][
            0
        ]
        now.named.append(name)
        return (name,)


def _without_graph(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)
