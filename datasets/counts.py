"""Numbers of a data set by split, and how they differ from the published ones (tools/check_data.py).

The counts of a split are "triplets", "identities", "cameras", with scenes in the protocol "scenes", and "masks", the foreground
masks beside the triplets; those of "all" are of the distinct ones of all splits.
"""
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config import MODALITIES
from demo_sdtps.datasets import reader_of, synthetic
from demo_sdtps.datasets.base import Sample
from demo_sdtps.datasets.masks import mask_path

Counts = dict[str, int]
Sizes = dict[str, Counter[tuple[int, int]]]
"""(height, width) of the images of each modality, or of "images", which hold the three side by side."""


def count_splits(splits: Mapping[str, Sequence[Sample]], by_scene: bool) -> dict[str, Counts]:
    """The counts of every split, and of all together as "all"."""
    everything = dict.fromkeys(sample for samples in splits.values() for sample in samples)
    return {split: _count(samples, by_scene) for split, samples in {**splits, "all": everything}.items()}


def _count(samples: Iterable[Sample], by_scene: bool) -> Counts:
    samples = list(samples)
    labels = {"identities": "identity", "cameras": "camera"} | ({"scenes": "scene"} if by_scene else {})
    return {"triplets": len(samples),
            **{name: len({getattr(sample, label) for sample in samples}) for name, label in labels.items()},
            "masks": sum(mask_path(sample).is_file() for sample in samples)}


def published_counts(cfg: CfgNode) -> Mapping[str, Mapping[str, int]]:
    """What is known of the counts of DATASETS.NAMES, by split: published, or noted by tools/make_synthetic.py."""
    made = synthetic.made(Path(cfg.DATASETS.ROOT_DIR))
    return reader_of(cfg).published if made is None else made


def differences(found: Mapping[str, Counts], expected: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence on each count that differs from the expected one, and what to mend."""
    told = []
    for split, counts in expected.items():
        for name, number in counts.items():
            if (seen := found[split][name]) != number:
                what = f"{number - seen:,} fewer: unpack or download the data again" if seen < number else \
                    f"{seen - number:,} more: remove what does not belong to them"
                told.append(f"{split} has {seen:,} {name}, but {number:,} are expected; {what} (docs/data.md).")
    return told


def image_files(samples: Iterable[Sample]) -> dict[str, list[str]]:
    """The distinct image files by modality, or as "images" where one holds the three side by side."""
    files: dict[str, dict[str, None]] = {}
    for sample in samples:
        names = MODALITIES if len(sample.paths) == len(MODALITIES) else ("images",)
        for name, path in zip(names, sample.paths, strict=True):
            files.setdefault(name, {})[path] = None
    return {name: list(paths) for name, paths in files.items()}


def described(sizes: Mapping[str, Counter[tuple[int, int]]]) -> str:
    """Sizes in a few words, once for modalities that are alike: "256×128"; "RGB, NI 3 sizes from 80×40 to 256×128"."""
    texts: dict[str, list[str]] = {}
    for name, found in sizes.items():
        by_area = sorted(found, key=lambda size: (size[0] * size[1], size))
        ends = [f"{height}×{width}" for height, width in (by_area[0], by_area[-1])]
        text = ends[0] if len(by_area) == 1 else f"{len(by_area)} sizes from {ends[0]} to {ends[1]}"
        texts.setdefault(text, []).append(name)
    return "; ".join(text if len(texts) == 1 else f"{', '.join(names)} {text}" for text, names in texts.items())
