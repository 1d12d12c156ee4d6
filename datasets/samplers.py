"""Batches of identities (docs/method.md), or simply shuffled ones.

The batches of an epoch follow from the seed and the epoch's number alone, so that the place in an epoch is the number of
batches that were taken: an epoch can begin at any of them.
"""
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch


class EpochBatchSampler(ABC):
    """The batches of `epoch`, without the first `start` of them; `len` counts all.

    `share` gives what this process takes of a batch, by default all of it.
    """

    def __init__(self):
        self.epoch = self.start = 0
        self.share: Callable[[list], list] = list

    def begin(self, epoch: int, start: int = 0) -> None:
        """Have the next loop give the batches of this epoch, without the first `start`."""
        self.epoch, self.start = epoch, start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return map(self.share, islice(self.batches(), self.start, None))

    def __len__(self) -> int:
        return len(self.batches())

    @abstractmethod
    def batches(self) -> list[list[tuple[int, int]]]:
        """All batches of the current epoch."""


class IdentityBatchSampler(EpochBatchSampler):
    """Batches of `batch_size / instances` random identities with `instances` samples each.

    Every epoch each identity's samples are shuffled and cut into groups of `instances`: an identity with fewer draws with
    replacement to one full group, a remainder is dropped. Batches take groups of random identities until too few
    identities remain. An item is (index, seed): the seed is what the sample's augmentation is drawn from, so that an
    epoch is the same for any number of loading processes. The order depends on `seed` and the epoch alone.
    """

    def __init__(self, labels: Sequence[int], batch_size: int, instances: int, seed: int):
        super().__init__()
        self.identities_per_batch, self.instances, self.seed = batch_size // instances, instances, seed
        self.by_identity = defaultdict(list)
        for index, label in enumerate(labels):
            self.by_identity[label].append(index)

    def batches(self) -> list[list[tuple[int, int]]]:
        """All batches of the current epoch. Their number varies a little between epochs."""
        generator = _generator(self.seed, self.epoch)
        groups = {label: self._groups(indices, generator) for label, indices in self.by_identity.items()}
        batches = []
        while len(groups) >= self.identities_per_batch:
            labels = list(groups)
            chosen = [labels[i] for i in torch.randperm(len(labels), generator=generator)[:self.identities_per_batch]]
            indices = [index for label in chosen for index in groups[label].pop()]
            for label in chosen:
                if not groups[label]:
                    del groups[label]
            batches.append(_with_seeds(indices, generator))
        return batches

    def _groups(self, indices: list[int], generator: torch.Generator) -> list[list[int]]:
        if len(indices) < self.instances:
            return [[indices[i] for i in torch.randint(len(indices), (self.instances,), generator=generator)]]
        order = [indices[i] for i in torch.randperm(len(indices), generator=generator)]
        return [order[start:start + self.instances]
                for start in range(0, len(order) - self.instances + 1, self.instances)]


class ShuffledBatchSampler(EpochBatchSampler):
    """All samples once an epoch in random order, in batches of `batch_size`; a smaller rest is dropped.

    Items and randomness are those of `IdentityBatchSampler`.
    """

    def __init__(self, count: int, batch_size: int, seed: int):
        super().__init__()
        self.count, self.batch_size, self.seed = count, batch_size, seed

    def __len__(self) -> int:
        return self.count // self.batch_size

    def batches(self) -> list[list[tuple[int, int]]]:
        """All batches of the current epoch."""
        generator = _generator(self.seed, self.epoch)
        order = torch.randperm(self.count, generator=generator).tolist()
        return [_with_seeds(order[start:start + self.batch_size], generator)
                for start in range(0, len(self) * self.batch_size, self.batch_size)]


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + epoch)


def _with_seeds(indices: list[int], generator: torch.Generator) -> list[tuple[int, int]]:
    seeds = torch.randint(2**62, (len(indices),), generator=generator)
    return list(zip(indices, seeds.tolist(), strict=True))
