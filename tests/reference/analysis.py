"""What an evaluation says beyond its means (docs/getting_started.md), one query and one gallery sample at a time, as lists."""


def ranking(row, identity, key, gallery_ids, gallery_keys):
    """(distance, whether it is a match, gallery sample) by distance, a match after others at its distance."""
    entries = []
    for sample, (distance, other, other_key) in enumerate(
        zip(row, gallery_ids, gallery_keys, strict=True)
    ):
        if other == identity and other_key == key:
            continue
        entries.append((distance, other == identity, sample))
    return sorted(entries)


def match_ranks(entries):
    return [rank for rank, (_, is_match, _) in enumerate(entries, start=1) if is_match]


def average_precision(entries):
    """None without a match."""
    return mean([hits / rank for hits, rank in enumerate(match_ranks(entries), start=1)])


def first_match(entries):
    return next(iter(match_ranks(entries)), 0)


def mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None


def rankings(distances, ids, keys):
    return [
        ranking(row, identity, key, ids[1], keys[1])
        for row, identity, key in zip(distances, ids[0], keys[0], strict=True)
    ]
