"""Which modalities the triplets of own data have, and which never meet, as images of unequal names do (docs/own_data.md)."""

from collections import Counter
from collections.abc import Mapping, Sequence

from yacs.config import CfgNode

from demo_sdtps.datasets import OWN_READERS, Sample

Splits = Mapping[str, Sequence[Sample]]


def completeness(cfg: CfgNode, splits: Splits) -> list[str]:
    """A line for each split of own data: how many of its triplets have all modalities, and how many lack which."""
    lines: list[str] = []
    if cfg.DATASETS.NAMES not in OWN_READERS:
        return lines
    for split, samples in splits.items():
        lacking = Counter(
            " and ".join(name for name in cfg.MODEL.MODALITIES if name not in sample.modalities)
            for sample in samples
        )
        complete = lacking.pop("", 0)
        lacks = (f"; {count:,} lack {names}" for names, count in lacking.most_common())
        lines.append(
            f"{split}: {complete:,} of {len(samples):,} triplets are complete{''.join(lacks)}"
        )
    return lines


def unpaired(splits: Splits, modalities: Sequence[str]) -> list[str]:
    """A warning for each split with images of several modalities, of which some share no triplet with another."""
    warnings = []
    for split, samples in splits.items():
        first = {sample.modalities: sample for sample in reversed(samples)}
        alone = [name for name in modalities if {s for s in first if name in s} == {(name,)}]
        if alone and len(first) > 1:
            other = next(sample for names, sample in first.items() if names != (alone[0],))
            warnings.append(
                f"WARNING: no image of {' and none of '.join(alone)} in {split} shares a triplet with another modality, such "
                f"as {first[alone[0],].files[0]} with {other.files[0]}; give the images of a triplet one name, or one line "
                "of the table (docs/own_data.md)."
            )
    return warnings
