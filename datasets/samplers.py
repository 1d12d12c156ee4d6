"""Batches of identities (spec 7), or simply shuffled ones."""
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch


class IdentityBatchSampler:
    """Batches of `batch_size / instances` random identities with `instances` samples each.

    Every epoch each identity's samples are shuffled and cut into groups of `instances`: an identity with fewer draws with
    replacement to one full group, a remainder is dropped. Batches take groups of random identities until too few
    identities remain. An item is (index, seed): the seed is what the sample's augmentation is drawn from, so that an
    epoch is the same for any number of loading processes. The order depends on `seed` and the epoch alone.
    """

    def __init__(self, labels: Sequence[int], batch_size: int, instances: int, seed: int):
        self.identities_per_batch, self.instances, self.seed = batch_size // instances, instances, seed
        self.epoch = 0
        self.by_identity = defaultdict(list)
        for index, label in enumerate(labels):
            self.by_identity[label].append(index)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return iter(self.batches())

    def __len__(self) -> int:
        return len(self.batches())

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


class ShuffledBatchSampler:
    """All samples once an epoch in random order, in batches of `batch_size`; a smaller rest is dropped.

    Items and randomness are those of `IdentityBatchSampler`.
    """

    def __init__(self, count: int, batch_size: int, seed: int):
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.epoch = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        generator = _generator(self.seed, self.epoch)
        order = torch.randperm(self.count, generator=generator).tolist()
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield _with_seeds(order[start:start + self.batch_size], generator)

    def __len__(self) -> int:
        return self.count // self.batch_size


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + epoch)


def _with_seeds(indices: list[int], generator: torch.Generator) -> list[tuple[int, int]]:
    seeds = torch.randint(2**62, (len(indices),), generator=generator)
    return list(zip(indices, seeds.tolist(), strict=True))
