"""Batch samplers, by seed and epoch alone: P identities with K instances each (docs/method.md), or shuffled samples."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

from demo_sdtps.config import UserError
from demo_sdtps.runtime.distributed import shard_for_rank


class EpochBatchSampler:
    """This process's part of the batches of `epoch`, lists of (index, seed), from which the augmentation of a sample draws."""

    def __init__(self, seed: int) -> None:
        self.seed, self.epoch = seed, 0

    def begin(self, epoch: int) -> None:
        """Set the epoch of the next loop."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return map(shard_for_rank, self.batches())

    def __len__(self) -> int:
        return len(self.batches())

    def batches(self) -> list[list[tuple[int, int]]]:
        """All batches of the current epoch; their number may vary slightly between epochs."""
        generator, batches = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch), []
        for indices in self.draw(generator):
            seeds = torch.randint(2**62, (len(indices),), generator=generator).tolist()
            batches.append(list(zip(indices, seeds, strict=True)))
        return batches

    def draw(self, generator: torch.Generator) -> Iterator[list[int]]:
        """The indices of each batch. Between two batches the seeds of the samples are drawn from the generator too."""
        raise NotImplementedError


class IdentityBatchSampler(EpochBatchSampler):
    """Batches of `batch_size / instances` random identities with `instances` samples each, until too few identities remain. The
    shuffled samples of each identity form groups of `instances` without the remainder; of fewer, one with replacement."""

    def __init__(self, labels: Sequence[int], batch_size: int, instances: int, seed: int):
        super().__init__(seed)
        self.identities_per_batch, self.instances = batch_size // instances, instances
        self.by_identity: dict[int, list[int]] = defaultdict(list)
        for index, label in enumerate(labels):
            self.by_identity[label].append(index)

    def draw(self, generator: torch.Generator) -> Iterator[list[int]]:
        members = self.by_identity.items()
        groups = {label: self._groups(indices, generator) for label, indices in members}
        labels, count = list(groups), self.identities_per_batch
        while len(labels) >= count:
            # Fisher and Yates' shuffle of the last `count` alone: a batch takes no longer where identities are many.
            draws = torch.randint(2**62, (count,), generator=generator).tolist()
            for last, draw in zip(range(len(labels) - 1, -1, -1), draws, strict=False):
                place = draw % (last + 1)
                labels[place], labels[last] = labels[last], labels[place]
            chosen = labels[-count:]
            del labels[-count:]
            yield [index for label in chosen for index in groups[label].pop()]
            labels += [label for label in chosen if groups[label]]

    def _groups(self, indices: list[int], generator: torch.Generator) -> list[list[int]]:
        count, size = len(indices), self.instances
        if count < size:
            order = torch.randint(count, (size,), generator=generator)
        else:
            order = torch.randperm(count, generator=generator)[: count - count % size]
        return [[indices[i] for i in group] for group in order.view(-1, size)]


class ShuffledBatchSampler(EpochBatchSampler):
    """All `count` samples, of which each is a `unit` such as "triplets", once per epoch in random order, in batches of
    `batch_size`; a smaller last batch is dropped. Raises `UserError` for fewer samples than a batch."""

    def __init__(self, count: int, unit: str, batch_size: int, seed: int):
        super().__init__(seed)
        if count < batch_size:
            raise UserError(
                f"The training split has {count} {unit}, fewer than a batch (SOLVER.IMS_PER_BATCH {batch_size}); lower it."
            )
        self.count, self.batch_size = count, batch_size

    def draw(self, generator: torch.Generator) -> Iterator[list[int]]:
        whole = self.count - self.count % self.batch_size
        order = torch.randperm(self.count, generator=generator)[:whole]
        yield from order.view(-1, self.batch_size).tolist()
