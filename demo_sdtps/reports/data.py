"""What demo-sdtps check finds in a data set, re-identification or image-text: counts by split, beside the published ones.

The counts of a split are "triplets", "identities", "cameras", with scenes in the protocol "scenes", and "masks", the foreground
masks beside the triplets; those of "all" are of the distinct ones of all splits.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from yacs.config import CfgNode

from demo_sdtps.config.scores import reads_masks
from demo_sdtps.datasets import Sample, find_reader, read_splits, synthetic
from demo_sdtps.datasets.base import UNKNOWN
from demo_sdtps.datasets.images import verify
from demo_sdtps.datasets.loaders import shuffled_batches, train_sampler
from demo_sdtps.datasets.masks import existing_masks, mask_path
from demo_sdtps.datasets.pairing import completeness
from demo_sdtps.evaluation.protocol import count_matched, data_warnings
from demo_sdtps.seps import evaluation as seps_evaluation

Counts = dict[str, int]

NUMBER, SPLIT = 12, 10  # widths of columns


@dataclass(frozen=True)
class Findings:
    """What is in a data set: counts by split, sentences on counts that differ, warnings, and lines on what is complete."""

    counts: dict[str, Counts]
    expected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    complete: tuple[str, ...] = ()

    @property
    def differences(self) -> list[str]:
        return count_differences(self.counts, self.expected)


def check_triplets(cfg: CfgNode, decode: bool) -> Findings:
    """Read the triplets of all splits as training does."""
    splits = read_splits(cfg)
    if reads_masks(cfg):
        existing_masks(cfg, splits["train"])
    matched = count_matched(cfg, splits["query"], splits["gallery"])
    train_sampler(cfg, [sample.identity for sample in splits["train"]])
    if decode:
        verify(path for samples in splits.values() for sample in samples for path in sample.files)
    return Findings(
        count_splits(splits, find_reader(cfg).by_scene),
        published_counts(cfg),
        tuple(data_warnings(cfg, splits, matched)),
        tuple(completeness(cfg, splits)),
    )


def check_captions(cfg: CfgNode, decode: bool) -> Findings:
    """Read the images and captions of all splits as training does."""
    splits = seps_evaluation.read_caption_splits(cfg)
    shuffled_batches(
        len(splits["train"].captions), "captions", cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.SEED
    )
    seps_evaluation.check_folds(splits["test"], cfg.TEST.FOLDS)
    if decode:
        verify(path for split in splits.values() for path in split.paths)
    counts = {}
    for name, split in splits.items():
        texts = {"captions": len(split.captions), "long": len(split.long_captions or ())}
        counts[name] = {"images": len(split.paths), **texts}
    return Findings(counts, warnings=tuple(seps_evaluation.caption_warnings(splits)))


def count_table(findings: Findings) -> list[str]:
    """A row of counts for each split, and below it one of the expected counts, where there are any."""
    names = list(next(iter(findings.counts.values())))
    rows = [("", names)]
    for split, counts in findings.counts.items():
        rows.append((split, [f"{counts[name]:,}" for name in names]))
        if expected := findings.expected.get(split):
            cells = [f"{expected[name]:,}" if name in expected else "" for name in names]
            rows.append(("  expected", cells))
    lines = [
        f"{title:{SPLIT}}{''.join(cell.rjust(NUMBER) for cell in cells)}".rstrip()
        for title, cells in rows
    ]
    note = [] if findings.expected else ["expected counts: not known here (docs/data.md)"]
    return lines + note


def count_splits(splits: Mapping[str, Sequence[Sample]], by_scene: bool) -> dict[str, Counts]:
    """The counts of every split, and of all together as "all"."""
    everything = {sample for samples in splits.values() for sample in samples}
    # each triplet is a scene of its own where the data have no cameras
    by_scene = by_scene and any(sample.camera != UNKNOWN for sample in everything)
    groups: dict[str, Collection[Sample]] = {**splits, "all": everything}
    return {split: _count(samples, by_scene) for split, samples in groups.items()}


def _count(samples: Collection[Sample], by_scene: bool) -> Counts:
    scenes = {"scenes": len({sample.scene for sample in samples})} if by_scene else {}
    return {
        "triplets": len(samples),
        "identities": len({sample.identity for sample in samples}),
        "cameras": len({sample.camera for sample in samples} - {UNKNOWN}),
        **scenes,
        "masks": sum(mask_path(sample).is_file() for sample in samples),
    }


def published_counts(cfg: CfgNode) -> Mapping[str, Mapping[str, int]]:
    """What is known of the counts of DATASETS.NAMES, by split: published, or noted by demo-sdtps synthetic."""
    reader = find_reader(cfg)
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
