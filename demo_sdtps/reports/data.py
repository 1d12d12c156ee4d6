"""What demo-sdtps check tells of a data set for re-identification: counts by split, beside the published ones.

The counts of a split are "triplets", their images by modality, "identities", "cameras" and, with scenes in the protocol,
"scenes"; those of "all" are of the distinct triplets of all splits.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from demo_sdtps.datasets import Sample, find_reader, read_splits
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.images import verify
from demo_sdtps.datasets.loaders import train_sampler
from demo_sdtps.datasets.published import MARKER
from demo_sdtps.evaluation.protocol import count_matched, data_warnings
from demo_sdtps.evaluation.tables import markdown_table

Counts = Mapping[str, Mapping[str, int]]
"""Counts by split and name."""


def check_triplets(cfg: CfgNode, decode: bool) -> dict[str, Any]:
    """Read all splits as training does, and with `decode` every image → "counts", "expected", "differences" and "warnings"."""
    splits = read_splits(cfg)
    matched = count_matched(cfg, splits["query"], splits["gallery"])
    train_sampler(cfg, [sample.identity for sample in splits["train"]])
    if decode:
        verify(path for samples in splits.values() for sample in samples for path in sample.files)
    distinct = {sample for samples in splits.values() for sample in samples}
    # each triplet is a scene of its own where the data have no cameras
    has_cameras = any(sample.camera != UNKNOWN for sample in distinct)
    has_scenes = find_reader(cfg).by_scene and has_cameras
    samples_of: dict[str, Sequence[Sample]] = {**splits, "all": list(distinct)}
    modalities = cfg.MODEL.MODALITIES
    counts = {
        name: count_samples(samples, modalities, has_scenes) for name, samples in samples_of.items()
    }
    expected = published_counts(cfg)
    return {
        "counts": counts,
        "expected": expected,
        "differences": count_differences(counts, expected),
        "warnings": list(data_warnings(cfg, splits, matched)),
    }


def count_samples(
    samples: Sequence[Sample], modalities: Sequence[str], has_scenes: bool
) -> dict[str, int]:
    """The counts of a split."""
    values = {
        "identities": {sample.identity for sample in samples},
        "cameras": {sample.camera for sample in samples} - {UNKNOWN},
        **({"scenes": {sample.scene for sample in samples}} if has_scenes else {}),
    }
    images = {name: sum(name in one.modalities for one in samples) for name in modalities}
    counts = {name: len(each) for name, each in values.items()}
    return {"triplets": len(samples), **images, **counts}


def published_counts(cfg: CfgNode) -> Counts:
    """The published counts of DATASETS.NAMES, by split; none of synthetic images in the layout of a published data set."""
    reader = find_reader(cfg)
    is_synthetic = (reader.folder_in(Path(cfg.DATASETS.ROOT_DIR)) / MARKER).is_file()
    return {} if is_synthetic else reader.published


def count_differences(actual: Counts, expected: Counts) -> list[str]:
    """A sentence on each count that differs from the expected one, and how to fix it."""
    sentences = []
    for split, counts in expected.items():
        for name, number in counts.items():
            more = actual[split][name] - number
            if more:
                sentences.append(
                    f"{split} has {actual[split][name]:,} {name}, but {number:,} are expected ({more:+,}); unpack the "
                    "data again (docs/train.md)."
                )
    return sentences


def count_table(counts: Counts, expected: Counts) -> str:
    """A table in Markdown with a row for each split; beside the counts the expected ones, where they are known."""
    names = list(next(iter(counts.values())))

    def cell(split: str, name: str) -> str:
        known = expected.get(split, {}).get(name)
        return f"{counts[split][name]:,}" + (f" of {known:,}" if known else "")

    rows = [[split, *(cell(split, name) for name in names)] for split in counts]
    note = "" if expected else "\nexpected counts: not known here (docs/train.md)"
    return markdown_table(("split", *names), rows) + note
