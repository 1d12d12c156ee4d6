"""Features in blocks and tables, and the same in one array."""

from pathlib import Path

import numpy as np

from demo_sdtps.retrieval.nearest import FeatureBlocks, Gallery


def read_all(feature_set):
    return feature_set.features.take(feature_set.features.rows)


def make_blocks(features, names=None, size=7):
    """In blocks of `size` rows, the last a smaller one, the second half of them first; equally near ones by name."""

    def scan():
        starts = [*range(0, len(features), size)]
        for start in starts[len(starts) // 2 :] + starts[: len(starts) // 2]:
            block = features[start : start + size]
            yield np.arange(start, start + len(block)), block

    ranks = None if names is None else np.argsort(np.argsort(names))
    return FeatureBlocks(*features.shape, scan, features.__getitem__, ranks)


def make_gallery(features, names=None, present=None, size=7):
    """A gallery of complete triplets, unless it is told what is present."""
    present = np.ones((len(features), 3), bool) if present is None else present
    return Gallery(make_blocks(features, names, size), present)


def data_files(place):
    """The files of a table that have its rows."""
    return sorted(Path(place, "features.lance", "data").iterdir())


def damage(path, draws, zeroes):
    """Flip a bit, or set a block of 4 KiB to zero, at a random place of a file, which changes it."""
    before = path.read_bytes()
    content = bytearray(before)
    while content == before:
        at = int(draws.integers(len(content)))
        if zeroes:
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        else:
            content[at] ^= 1 << int(draws.integers(8))
    path.write_bytes(content)
    return before
