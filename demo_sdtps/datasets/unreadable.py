"""Images that cannot be read and are left out (DATASETS.SKIP_UNREADABLE)."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from demo_sdtps.config.cli import count_text, print_lines
from demo_sdtps.datasets.base import Sample
from demo_sdtps.datasets.images import unreadable
from demo_sdtps.runtime.distributed import all_gather_object, is_main, shard_for_rank

AnySample = TypeVar("AnySample", bound=Sample)
left_out: dict[str, str] = {}
"""What is wrong with the images of data sets that this process has left out, by path."""


def drop_unreadable(samples: Sequence[AnySample], broken: dict[str, str]) -> list[AnySample]:
    """The samples without images that cannot be read, and without those that have no other. What is wrong is added to
    `broken` by path. Each of several processes reads a part of them."""
    paths = (path for sample in shard_for_rank(samples) for path in sample.paths if path)
    for damaged in all_gather_object(unreadable(paths)):
        broken.update(damaged)
    remaining = [sample.without(broken) for sample in samples]
    return [sample for sample in remaining if any(sample.paths)]


def omissions(broken: Mapping[str, str]) -> list[str]:
    """Lines on the images that cannot be read; none where all can."""
    return [f"Left out, {count_text(len(broken), 'image')}:", *broken.values()] if broken else []


def print_left_out() -> None:
    """List at the end of a command what was left out, if anything was."""
    if left_out and is_main():
        print_lines(*omissions(left_out))
    left_out.clear()
