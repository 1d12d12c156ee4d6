"""Batch samplers: P identities with K instances each (docs/method.md), or shuffled samples.

The batches of an epoch depend on the seed and the number of the epoch only, so that training can resume at any batch.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from demo_sdtps.runtime.distributed import shard_for_rank


class EpochBatchSampler(ABC):
    """This process's part of the batches of `epoch` without the first `start`; `len` counts all of them.

    A batch is a list of (index, seed): the augmentation of a sample draws from the seed, in whichever process it is loaded.
    """

    def __init__(self) -> None:
        self.epoch = self.start = 0

    def begin(self, epoch: int, start: int = 0) -> None:
        """Set the epoch of the next loop, and the number of batches to skip."""
        self.epoch, self.start = epoch, start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return map(shard_for_rank, islice(self.batches(), self.start, None))

    def __len__(self) -> int:
        return len(self.batches())

    @abstractmethod
    def batches(self) -> list[list[tuple[int, int]]]:
        """All batches of the current epoch; their number may vary slightly between epochs."""


class IdentityBatchSampler(EpochBatchSampler):
    """Batches of `batch_size / instances` random identities with `instances` samples each, until too few identities remain.

    The shuffled samples of each identity form groups of `instances` without the remainder; where they are fewer than one group,
    it is drawn with replacement.
    """

    def __init__(self, labels: Sequence[int], batch_size: int, instances: int, seed: int):
        super().__init__()
        self.identities_per_batch, self.instances, self.seed = (
            batch_size // instances,
            instances,
            seed,
        )
        self.by_identity: dict[int, list[int]] = defaultdict(list)
        for index, label in enumerate(labels):
            self.by_identity[label].append(index)

    def batches(self) -> list[list[tuple[int, int]]]:
        generator = _generator(self.seed, self.epoch)
        groups = {
            label: self._groups(indices, generator) for label, indices in self.by_identity.items()
        }
        batches = []
        while len(groups) >= self.identities_per_batch:
            labels = list(groups)
            chosen = [
                labels[i]
                for i in torch.randperm(len(labels), generator=generator)[
                    : self.identities_per_batch
                ]
            ]
            indices = [index for label in chosen for index in groups[label].pop()]
            for label in chosen:
                if not groups[label]:
                    del groups[label]
            batches.append(_with_seeds(indices, generator))
        return batches

    def _groups(self, indices: list[int], generator: torch.Generator) -> list[list[int]]:
        if len(indices) < self.instances:
            return [
                [
                    indices[i]
                    for i in torch.randint(len(indices), (self.instances,), generator=generator)
                ]
            ]
        order = [indices[i] for i in torch.randperm(len(indices), generator=generator)]
        return [
            order[start : start + self.instances]
            for start in range(0, len(order) - self.instances + 1, self.instances)
        ]


class ShuffledBatchSampler(EpochBatchSampler):
    """All samples once per epoch in random order, in batches of `batch_size`; a smaller last batch is dropped."""

    def __init__(self, count: int, batch_size: int, seed: int):
        super().__init__()
        self.count, self.batch_size, self.seed = count, batch_size, seed

    def __len__(self) -> int:
        return self.count // self.batch_size

    def batches(self) -> list[list[tuple[int, int]]]:
        generator = _generator(self.seed, self.epoch)
        order = torch.randperm(self.count, generator=generator).tolist()
        return [
            _with_seeds(order[start : start + self.batch_size], generator)
            for start in range(0, len(self) * self.batch_size, self.batch_size)
        ]


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + epoch)


def _with_seeds(indices: list[int], generator: torch.Generator) -> list[tuple[int, int]]:
    seeds = torch.randint(2**62, (len(indices),), generator=generator)
    return list(zip(indices, seeds.tolist(), strict=True))
