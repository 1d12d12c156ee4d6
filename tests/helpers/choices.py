"""How clear a choice of patches is. Between scores that differ by less than their roundings any of two patches may be chosen,
and whatever follows differs by more than roundings."""

from contextlib import ExitStack, contextmanager
from unittest import mock

from demo_sdtps.modeling import sdtps
from vit_slim import stage


@contextmanager
def margins():
    """By how much, in each selection of this block, the last score that is kept exceeds the first that is dropped, relative to
    the largest absolute score of those that are selected from together: a list."""
    choices, best = [], sdtps.best

    def noting(score, keep):
        ordered = score.detach().double().sort(dim=-1, descending=True).values
        if keep < ordered.shape[-1]:
            choices.extend(
                ((ordered[..., keep - 1] - ordered[..., keep]) / ordered.abs().max())
                .flatten()
                .tolist()
            )
        return best(score, keep)

    with ExitStack() as changes:
        for module in (sdtps, stage):
            changes.enter_context(mock.patch.object(module, "best", noting))
        yield choices
