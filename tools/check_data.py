"""Counts of a data set beside the expected ones, and what to mend: python tools/check_data.py --config_file F"""
import sys
from pathlib import Path

if __name__ in ("__main__", "__mp_main__"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import demo_sdtps.script  # noqa: F401

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import add_output, config_parser, parse, print_lines, run
from demo_sdtps.config.files import write_json
from demo_sdtps.config.load import DEMO_SCHEMA, schema_of
from demo_sdtps.config.scores import reads_masks
from demo_sdtps.config.threads import cpu_cores
from demo_sdtps.datasets import SPLITS, data_folders, read_splits, reader_of
from demo_sdtps.datasets.counts import Counts, Sizes, count_splits, described, differences, image_files, published_counts
from demo_sdtps.datasets.images import image_sizes, verify
from demo_sdtps.datasets.loaders import shuffled_batches, train_sampler
from demo_sdtps.datasets.masks import existing_masks
from demo_sdtps.engine.evaluation.protocol import count_matched, data_warnings
from demo_sdtps.seps import evaluation as seps_evaluation
from demo_sdtps.seps.image_text import ImageTexts
from demo_sdtps.seps.schema import SEPS_SCHEMA

NUMBER, SPLIT = 12, 10  # widths of columns
Split = TypeVar("Split")


@dataclass(frozen=True)
class Findings:
    """What is in a data set: counts and sizes of the images by split, sentences on counts that differ, and warnings."""

    counts: dict[str, Counts]
    sizes: dict[str, Sizes]
    expected: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def differences(self) -> list[str]:
        return differences(self.counts, self.expected)


def main() -> None:
    schema = schema_of(given, (DEMO_SCHEMA, SEPS_SCHEMA)) if (given := _config_file()) else DEMO_SCHEMA
    is_seps = schema is SEPS_SCHEMA
    parser = config_parser(
        "Read a data set, re-identification or image-text, and print its counts by split beside the expected ones, where these "
        "are known (docs/data.md), and what to mend.",
        "exit code: 0 if training can start; 1 if it can, but a count is not the expected one; 2, with a sentence on each "
        "split or image, if it cannot", schema)
    parser.set_defaults(inputs=seps_evaluation.data_folders if is_seps else data_folders)
    parser.add_argument("--decode", action="store_true", help="decode every image, by DATALOADER.NUM_WORKERS threads (-1: one "
                        "per core), and name those that are damaged; without it only the headers are read")
    add_output(parser, "--json", ".json", help="write the counts, expected ones and warnings there as well")
    arguments, cfg = parse(parser)
    found = (check_captions if is_seps else check_triplets)(cfg, arguments.decode)
    folder = parser.get_default("inputs")(cfg)[0]
    if arguments.json:
        write_json(arguments.json, as_json(cfg, folder, found, arguments.decode))
    decoded = "every image was decoded" if arguments.decode else "no image was decoded (--decode does)"
    print_lines(f"{cfg.DATASETS.NAMES} in {folder}", *table(found), *found.warnings,
                *(f"WARNING: {sentence}" for sentence in found.differences),
                f"{arguments.config_file} can train on it; {decoded}.")
    sys.exit(1 if found.differences else 0)


def _config_file() -> str | None:
    """The value of --config_file, by whose keys the parser is made."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config_file")
    return parser.parse_known_args()[0].config_file


def check_triplets(cfg: CfgNode, decode: bool) -> Findings:
    """Read the triplets of all splits as training does. Raises `UserError` for all splits, or images, that cannot be read, and
    where training could not begin."""
    reader = reader_of(cfg)
    splits = every_split(cfg.DATASETS.NAMES, SPLITS, lambda split: read_splits(cfg, [split])[split])
    for split, samples in splits.items():
        if reads_masks(cfg, training=split == "train"):
            existing_masks(cfg, samples)
    matched = count_matched(cfg, splits["query"], splits["gallery"])
    train_sampler(cfg, [sample.identity for sample in splits["train"]])
    counts = count_splits(splits, reader.by_scene)
    sizes = sizes_of(cfg, {split: image_files(samples) for split, samples in splits.items()})
    if decode:
        verify((sample for samples in splits.values() for sample in samples), threads(cfg))
    return Findings(counts, sizes, published_counts(cfg), tuple(data_warnings(cfg, splits, matched)))


def check_captions(cfg: CfgNode, decode: bool) -> Findings:
    """Likewise, images with captions."""
    read = seps_evaluation.read_caption_splits
    splits = every_split(cfg.DATASETS.NAMES, seps_evaluation.SPLITS, lambda split: read(cfg, [split])[split])
    seps_evaluation.check_long_captions(cfg, splits)
    shuffled_batches(len(splits["train"].captions), "captions", cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.SEED)
    seps_evaluation.check_folds(splits["test"], cfg.TEST.FOLDS)
    sizes = sizes_of(cfg, {name: {"images": list(split.paths)} for name, split in splits.items()})
    if decode:
        verify(splits.values(), threads(cfg))
    counts = {name: caption_counts(split) for name, split in splits.items()}
    return Findings(counts, sizes, warnings=tuple(seps_evaluation.data_warnings(splits)))


def caption_counts(split: ImageTexts) -> Counts:
    return {"images": len(split.paths), "captions": len(split.captions), "long": len(split.long_captions or ())}


def every_split(name: str, splits: Iterable[str], read: Callable[[str], Split]) -> dict[str, Split]:
    """What `read` gives for each split. Raises a `UserError` with what is wrong in all of them."""
    found: dict[str, Split] = {}
    problems: dict[str, str] = {}
    for split in splits:
        try:
            found[split] = read(split)
        except UserError as error:
            # What is wrong for all, or for query and gallery in one folder, is said once.
            problems.setdefault(str(error).replace(f"The {split} split", ""), str(error))
    if len(problems) == 1:
        raise UserError(*problems.values())
    if problems:
        raise UserError("\n  ".join([f"{len(problems)} splits of {name} cannot be read:", *problems.values()]))
    return found


def sizes_of(cfg: CfgNode, files: Mapping[str, Mapping[str, list[str]]]) -> dict[str, Sizes]:
    """Numbers of images of each (height, width), by split and modality. Raises a `UserError` with all that have no header."""
    paths = sorted({path for by_name in files.values() for own in by_name.values() for path in own})
    size = dict(zip(paths, image_sizes(paths, threads(cfg)), strict=True))
    return {split: {name: Counter(size[path] for path in own) for name, own in by_name.items()}
            for split, by_name in files.items()}


def threads(cfg: CfgNode) -> int:
    """DATALOADER.NUM_WORKERS as a number of threads."""
    return cpu_cores() if cfg.DATALOADER.NUM_WORKERS < 0 else max(1, cfg.DATALOADER.NUM_WORKERS)


def table(found: Findings) -> list[str]:
    """A row of counts for each split, and below it one of the expected counts, where there are any."""
    names = list(next(iter(found.counts.values())))
    lines = ["".ljust(SPLIT) + "".join(name.rjust(NUMBER) for name in names) + "  image sizes"]
    for split, counts in found.counts.items():
        sizes = f"  {described(found.sizes[split])}" if split in found.sizes else ""
        lines.append(split.ljust(SPLIT) + "".join(f"{counts[name]:{NUMBER},}" for name in names) + sizes)
        if expected := found.expected.get(split):
            cells = (f"{expected[name]:,}" if name in expected else "" for name in names)
            lines.append(("  expected".ljust(SPLIT) + "".join(cell.rjust(NUMBER) for cell in cells)).rstrip())
    return lines if found.expected else [*lines, "expected counts: not known here (docs/data.md)"]


def as_json(cfg: CfgNode, folder: str | Path, found: Findings, decoded: bool) -> dict[str, Any]:
    """Everything that is printed, and the number of images of each size."""
    sizes = {split: {name: {f"{height}x{width}": count for (height, width), count in sorted(own.items())}
                     for name, own in by_name.items()} for split, by_name in found.sizes.items()}
    return {"data set": cfg.DATASETS.NAMES, "folder": str(folder), "counts": found.counts, "expected": dict(found.expected),
            "sizes": sizes, "differences": found.differences, "warnings": list(found.warnings), "decoded": decoded}


if __name__ == "__main__":
    run(main)
