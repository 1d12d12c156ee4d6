"""Batches of identities, and shuffled ones."""

from collections import Counter
from itertools import combinations

import pytest
import torch

from demo_sdtps.datasets.samplers import IdentityBatchSampler, ShuffledBatchSampler

COUNTS = {10: 4, 11: 9, 12: 2, 13: 1, 14: 12, 15: 5, 16: 8}
LABELS = [label for label, count in COUNTS.items() for _ in range(count)]


def draw_epoch(sampler, epoch):
    sampler.begin(epoch)
    return list(sampler)


@pytest.mark.parametrize(("batch_size", "instances"), [(8, 4), (12, 4), (4, 2), (6, 1), (9, 3)])
def test_sampler_batches(batch_size, instances):
    sampler = IdentityBatchSampler(LABELS, batch_size, instances, seed=3)
    for epoch in range(1, 6):
        actual = draw_epoch(sampler, epoch)
        assert len(actual) == len(sampler) > 0
        used, groups = Counter(), Counter()
        for batch in actual:
            assert len(batch) == batch_size
            indices = [index for index, _ in batch]
            parts = [
                indices[start : start + instances] for start in range(0, batch_size, instances)
            ]
            identities = [{LABELS[index] for index in group} for group in parts]
            assert all(len(identity) == 1 for identity in identities)
            # no identity twice in a batch
            assert len(set().union(*identities)) == batch_size // instances
            used.update(indices)
            groups.update(identity.pop() for identity in identities)
        for label, count in COUNTS.items():
            # One full group for a short identity; the remainder of the others is dropped.
            assert groups[label] <= max(1, count // instances)
        assert all(n == 1 for index, n in used.items() if COUNTS[LABELS[index]] >= instances)
        # It stops only where fewer identities with a group left remain than a batch needs.
        left = sum(groups[label] < max(1, count // instances) for label, count in COUNTS.items())
        assert left < batch_size // instances


def test_identities_are_drawn_alike():
    """Each comes in every place of the first batch about as often, with each other one, and none is preferred at the end."""
    sampler = IdentityBatchSampler(range(6), 3, 1, seed=0)
    places, pairs, last = Counter(), Counter(), Counter()
    for epoch in range(900):
        first, second = ([index for index, _ in batch] for batch in draw_epoch(sampler, epoch))
        places.update(zip(first, range(3), strict=True))
        pairs.update(combinations(sorted(first), 2))
        last.update(second)
    # standard deviations 11, 12 and 14
    assert len(places) == 18 and all(100 < count < 200 for count in places.values())
    assert len(pairs) == 15 and all(120 < count < 240 for count in pairs.values())
    assert len(last) == 6 and all(380 < count < 520 for count in last.values())


def test_a_short_identity_is_filled_with_its_own_samples():
    sampler = IdentityBatchSampler([0, 0, 0, 1], batch_size=8, instances=4, seed=0)
    groups = set()
    for epoch in range(20):
        (batch,) = draw_epoch(sampler, epoch)
        by_identity = [
            sorted(index for index, _ in batch if (index == 3) == single)
            for single in (False, True)
        ]
        assert by_identity[1] == [3, 3, 3, 3]
        assert len(by_identity[0]) == 4 and set(by_identity[0]) <= {0, 1, 2}
        groups.add(tuple(by_identity[0]))
    assert len(groups) > 3  # drawn with replacement as a whole: more than all three and one again
    assert any(len(set(group)) < 3 for group in groups)


def test_the_remainder_is_another_one_every_epoch():
    sampler = IdentityBatchSampler([0] * 5 + [1] * 5, batch_size=8, instances=4, seed=0)
    left_out = {
        frozenset(range(10)) - {index for batch in draw_epoch(sampler, epoch) for index, _ in batch}
        for epoch in range(30)
    }
    assert all(len(left) == 2 for left in left_out)
    assert len(left_out) > 5


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: IdentityBatchSampler(LABELS, 8, 4, seed),
        lambda seed: ShuffledBatchSampler(50, "triplets", 8, seed),
    ],
    ids=["identities", "shuffled"],
)
def test_seed_and_epoch_decide_on_batches(make):
    ours, same = make(3), make(3)
    assert draw_epoch(ours, 1) != draw_epoch(ours, 2)
    assert draw_epoch(ours, 1) != draw_epoch(make(4), 1)
    torch.manual_seed(9)  # the state of torch plays no part, and is not changed
    before = torch.get_rng_state()
    same.epoch = 5
    assert draw_epoch(same, 1) == draw_epoch(ours, 1) == list(ours)
    assert torch.equal(torch.get_rng_state(), before)
    seeds = [seed for epoch in (1, 2) for batch in draw_epoch(ours, epoch) for _, seed in batch]
    assert len(set(seeds)) == len(seeds) > 40


# Shuffled batches


@pytest.mark.parametrize(("count", "batch_size"), [(50, 8), (48, 8), (9, 4), (8, 8), (7, 2)])
def test_shuffled_batches_take_each_sample_at_most_once(count, batch_size):
    sampler = ShuffledBatchSampler(count, "triplets", batch_size, seed=3)
    left_out = set()
    for epoch in range(1, 30):
        actual = draw_epoch(sampler, epoch)
        assert len(actual) == len(sampler) == count // batch_size
        assert {len(batch) for batch in actual} == {batch_size}
        indices = [index for batch in actual for index, _ in batch]
        assert len(set(indices)) == len(indices) and set(indices) <= set(range(count))
        left_out |= set(range(count)) - set(indices)
        assert len(indices) == count - count % batch_size
    # The rest is another one every epoch.
    assert len(left_out) > count % batch_size if count % batch_size else not left_out
