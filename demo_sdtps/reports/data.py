"""What demo-sdtps check finds in a data set for re-identification: counts by split, beside the published ones.

The counts of a split are "triplets", "identities", "cameras" and, with scenes in the protocol, "scenes"; those of "all" are of
the distinct ones of all splits.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.datasets import Sample, completeness, find_reader, read_splits, synthetic
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.images import verify
from demo_sdtps.datasets.loaders import train_sampler
from demo_sdtps.evaluation.protocol import count_matched, data_warnings

Counts = Mapping[str, Mapping[str, int]]  # by split
Findings = dict[str, Any]
"""What is in a data set: its counts, the expected ones, differences and warnings in sentences, and what is complete."""


def check_triplets(cfg: CfgNode, decode: bool) -> Findings:
    """Read the triplets of all splits as training does."""
    splits = read_splits(cfg)
    matched = count_matched(cfg, splits["query"], splits["gallery"])
    train_sampler(cfg, [sample.identity for sample in splits["train"]])
    if decode:
        verify(path for samples in splits.values() for sample in samples for path in sample.files)
    counts, expected = count_splits(splits, find_reader(cfg).by_scene), published_counts(cfg)
    return {
        "counts": counts,
        "expected": expected,
        "differences": count_differences(counts, expected),
        "warnings": list(data_warnings(cfg, splits, matched)),
        "complete": completeness(cfg, splits),
    }


def count_table(findings: Findings) -> list[str]:
    """A row of counts for each split, and below it one of the expected counts, where there are any."""
    counts, expected = findings["counts"], findings["expected"]
    names = list(next(iter(counts.values())))
    rows = [("", names)]
    for split, numbers in counts.items():
        rows.append((split, [f"{numbers[name]:,}" for name in names]))
        if known := expected.get(split):
            cells = [f"{known[name]:,}" if name in known else "" for name in names]
            rows.append(("  expected", cells))
    lines = [f"{title:10}{''.join(cell.rjust(12) for cell in row)}".rstrip() for title, row in rows]
    return lines + ([] if expected else ["expected counts: not known here (docs/train.md)"])


def count_splits(splits: Mapping[str, Sequence[Sample]], by_scene: bool) -> Counts:
    """The counts of every split, and of all together as "all"."""
    everything = {sample for samples in splits.values() for sample in samples}
    # each triplet is a scene of its own where the data have no cameras
    by_scene = by_scene and any(sample.camera != UNKNOWN for sample in everything)
    counts = {}
    for split, samples in {**splits, "all": everything}.items():
        numbers = {
            "triplets": len(samples),
            "identities": len({sample.identity for sample in samples}),
            "cameras": len({sample.camera for sample in samples} - {UNKNOWN}),
        }
        if by_scene:
            numbers["scenes"] = len({sample.scene for sample in samples})
        counts[split] = numbers
    return counts


def published_counts(cfg: CfgNode) -> Counts:
    """What is known of the counts of DATASETS.NAMES, by split: published, or noted by demo-sdtps synthetic."""
    reader = find_reader(cfg)
    record = synthetic.synthetic_counts(reader.folder_in(Path(cfg.DATASETS.ROOT_DIR)))
    return reader.published if record is None else record


def count_differences(actual: Counts, expected: Counts) -> list[str]:
    """A sentence on each count that differs from the expected one, and how to fix it."""
    sentences = []
    for split, counts in expected.items():
        for name, number in counts.items():
            if (count := actual[split][name]) != number:
                advice = "more: remove what does not belong to them"
                if count < number:
                    advice = "fewer: unpack or download the data again"
                sentences.append(
                    f"{split} has {count:,} {name}, but {number:,} are expected; {abs(count - number):,} {advice} "
                    "(docs/train.md)."
                )
    return sentences
