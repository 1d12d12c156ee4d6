"""Numbers of a data set by split, and how they differ from the published ones (tools/check_data.py).

The counts of a split are "triplets", "identities", "cameras", with scenes in the protocol "scenes", and "masks", the foreground
masks beside the triplets; those of "all" are of the distinct ones of all splits.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.datasets import reader_of, synthetic
from demo_sdtps.datasets.base import Sample
from demo_sdtps.datasets.masks import mask_path

Counts = dict[str, int]


def count_splits(splits: Mapping[str, Sequence[Sample]], by_scene: bool) -> dict[str, Counts]:
    """The counts of every split, and of all together as "all"."""
    everything = {sample for samples in splits.values() for sample in samples}
    groups: dict[str, Collection[Sample]] = {**splits, "all": everything}
    return {split: _count(samples, by_scene) for split, samples in groups.items()}


def _count(samples: Collection[Sample], by_scene: bool) -> Counts:
    scenes = {"scenes": len({sample.scene for sample in samples})} if by_scene else {}
    return {
        "triplets": len(samples),
        "identities": len({sample.identity for sample in samples}),
        "cameras": len({sample.camera for sample in samples}),
        **scenes,
        "masks": sum(mask_path(sample).is_file() for sample in samples),
    }


def published_counts(cfg: CfgNode) -> Mapping[str, Mapping[str, int]]:
    """What is known of the counts of DATASETS.NAMES, by split: published, or noted by tools/make_synthetic.py."""
    reader = reader_of(cfg)
    record = synthetic.synthetic_counts(reader.folder_in(Path(cfg.DATASETS.ROOT_DIR)))
    return reader.published if record is None else record


def count_differences(
    actual: Mapping[str, Counts], expected: Mapping[str, Mapping[str, int]]
) -> list[str]:
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
                    "(docs/data.md)."
                )
    return sentences
