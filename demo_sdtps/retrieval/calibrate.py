"""What demo-sdtps calibrate does: pairs of labelled triplets, and the calibration of a checkpoint (docs/search.md)."""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import FALSE_ACCEPT, FALSE_ACCEPT_RATES
from demo_sdtps.config.load import with_values
from demo_sdtps.datasets import Sample, check_labelled, read_splits
from demo_sdtps.datasets.base import SPLITS, VALIDATION
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.distances import (
    make_comparison,
    present_modalities,
    set_distances,
    set_name,
)
from demo_sdtps.evaluation.extraction import extract_features, missing_cases
from demo_sdtps.evaluation.protocol import exclude_key
from demo_sdtps.modeling.checkpoints.loading import stored_config, weights_file
from demo_sdtps.retrieval import calibration
from demo_sdtps.retrieval.extractor import Extractor, make_extractor
from demo_sdtps.retrieval.features import encode_present, modality_mask
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.files import check_output_file, sha256, write_json
from demo_sdtps.runtime.progress import progress

# pairs of different identities, for the coarsest threshold
LEAST = round(calibration.FEWEST / max(FALSE_ACCEPT_RATES))
MOST = 1000  # triplets whose pairs are compared


class Block(NamedTuple):
    """Distances (n, m) of labelled triplets by a return pattern, those of rows of one set of modalities and those of columns of
    another, `sets` such as "RGB, RGB+NI+TI"; the `identities` of rows and columns, and their `cameras`."""

    pattern: int
    sets: str
    distances: np.ndarray
    identities: tuple[np.ndarray, np.ndarray]
    cameras: tuple[np.ndarray, np.ndarray]

    def pairs(self, rows: Any = slice(None), columns: Any = slice(None)) -> calibration.Pairs:
        """The pairs of some rows and columns, as masks: those of one identity by different cameras, and of different ones."""
        is_same, is_same_camera = (
            one[rows][:, None] == other[columns] for one, other in (self.identities, self.cameras)
        )
        distances = self.distances[rows][:, columns]
        return distances[is_same & ~is_same_camera], distances[~is_same]


def thin_out(samples: Sequence[Sample]) -> list[Sample]:
    """At most MOST of the samples, as many as possible of each identity."""
    by_identity: dict[int, list[Sample]] = defaultdict(list)
    draw = np.random.default_rng(0)
    for place in draw.permutation(len(samples)):
        by_identity[samples[place].identity].append(samples[place])
    members = list(by_identity.values())[: MOST // 2]
    return [sample for each in members for sample in each[: MOST // len(members)]]


def labelled_distances(cfg: CfgNode, reid: Extractor, chosen: Sequence[Sample]) -> Iterator[Block]:
    """The distances of samples, by return pattern and pair of sets of modalities; each triplet is taken as of every set that it
    has images of, and by its camera as a search takes it: one of the training by its name, any other as their mean. In place of
    the cameras are the scenes where the protocol excludes by these, or numbers where all triplets are by one camera."""
    model = reid.model
    names = ("identity", exclude_key(cfg))
    identities, cameras = (np.array([getattr(one, name) for one in chosen]) for name in names)
    if (cameras == cameras[0]).all():
        cameras = np.arange(len(chosen))
    numbers = reid.camera_numbers([sample.camera_name or None for sample in chosen], len(chosen))
    known = [replace(sample, camera=n) for sample, n in zip(chosen, numbers, strict=True)]
    cases = missing_cases(model.modalities).values()
    extracted = extract_features(cfg, model, test_loader(cfg, known), [*cases])
    present = present_modalities(chosen, model.modalities)
    groups: dict[frozenset[str], tuple[np.ndarray, Mapping[int, torch.Tensor]]] = {}
    for missing, features in zip(cases, extracted, strict=True):
        modalities = frozenset(model.modalities) - missing
        rows = np.flatnonzero((present >= modality_mask(modalities)).all(axis=1))
        if len(rows):
            groups[modalities] = rows, features
    ordered = sorted(groups, key=lambda each: encode_present(modality_mask(each)))
    for pattern in progress(extracted[0], "comparing", unit="return pattern"):
        comparison = make_comparison(cfg, pattern)
        sides = {}
        for each, (rows, patterns) in groups.items():
            tiled = np.tile(modality_mask(each), (len(rows), 1))
            sides[each] = F.normalize(patterns[pattern][rows]), tiled
        for one, other in combinations_with_replacement(ordered, 2):
            if comparison.is_defined(one, other):
                name = f"{set_name(one)}, {set_name(other)}"
                distances = set_distances(comparison, sides[one], sides[other]).numpy()
                rows, columns = groups[one][0], groups[other][0]
                labels = ((each[rows], each[columns]) for each in (identities, cameras))
                yield Block(pattern, name, distances, *labels)


def calibrate(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Fit all return patterns, write the calibration beside the checkpoint, and with --test measure it on the test split."""
    weights, split = weights_file(cfg.TEST.WEIGHT), arguments.split
    path = calibration.calibration_file(weights)
    check_output_file(path, ".json", arguments.overwrite)
    check_split(cfg, split)
    if split != VALIDATION:
        cfg = with_values(cfg, {"DATASETS.VALIDATION": 0.0})
    tested = SPLITS[1:] if arguments.test else ()
    splits = read_splits(cfg, (split, *tested))
    reid = make_extractor(cfg).to(choose_device(cfg))
    chosen = thin_out(splits[split])
    patterns: dict[str, dict[str, Any]] = defaultdict(dict)
    scarce: dict[str, str] = {}
    for block in labelled_distances(cfg, reid, chosen):
        pairs = block.pairs()
        copies = (
            1 if len({*block.sets.split(", ")}) > 1 else 2
        )  # of equal sets every pair is there twice
        same, different = (len(each) // copies for each in pairs)
        if same >= calibration.FEWEST and different >= LEAST:
            patterns[str(block.pattern)][block.sets] = calibration.fit(pairs, copies)
        else:
            scarce[block.sets] = (
                f"{block.sets} has {same} pairs of one identity by different cameras and {different} of different ones"
            )
    needed = f"{calibration.FEWEST} and {LEAST} are needed"
    if not patterns:
        raise UserError(
            f"The {split} split has too few pairs of triplets, {needed}: {'; '.join(scarce.values())}; give more images."
        )
    counts = {"triplets": len(chosen), "identities": len({one.identity for one in chosen})}
    about = {"data_set": cfg.DATASETS.NAMES, "split": split, **counts}
    settings = calibration.calibration_settings(cfg)
    record = {"checkpoint_sha256": sha256(weights), "settings": settings, **about}
    record["patterns"] = patterns
    if arguments.test:
        record["test"] = defaultdict(dict)
        distinct = [*dict.fromkeys(sample for name in tested for sample in splits[name])]
        for block in labelled_distances(cfg, reid, thin_out(distinct)):
            pairs, fitted = block.pairs(), patterns[str(block.pattern)].get(block.sets, {})
            if fitted and all(map(len, pairs)):
                record["test"][str(block.pattern)][block.sets] = calibration.quality(fitted, pairs)
    write_json(path, record)
    without = [f"{text}, but {needed}" for text in scarce.values()]
    if nowhere := {*reid.model.modalities}.difference(*(one.modalities for one in chosen)):
        names = ", ".join(name for name in reid.model.modalities if name in nowhere)
        without.append(f"sets with {names}, of which there is no image")
    lines = (f"No probability, no threshold: {text}." for text in without)
    print_lines(*summary(record, str(cfg.TEST.RETURN_PATTERN)), *lines, path)


def check_split(cfg: CfgNode, split: str) -> None:
    """Raise `UserError` where a split has identities of the training, or those of the test that the model is reported by."""
    check_labelled(cfg)
    trained = load_cfg(stored_config(cfg.TEST.WEIGHT)).DATASETS
    advice = "train with DATASETS.VALIDATION 0.3, or give other labelled images by DATASETS.ROOT_DIR and --split"
    if split == VALIDATION and not trained.VALIDATION:
        raise UserError(
            f"{cfg.TEST.WEIGHT} was trained on all identities of the train split, whose distances promise too much; {advice}."
        )
    if split == VALIDATION and cfg.DATASETS.VALIDATION != trained.VALIDATION:
        raise UserError(
            f"DATASETS.VALIDATION is {cfg.DATASETS.VALIDATION}, but {cfg.TEST.WEIGHT} was trained with {trained.VALIDATION}, "
            "so these identities may be ones of its training; leave it out."
        )
    roots = {Path(data.ROOT_DIR).resolve() for data in (cfg.DATASETS, trained)}
    if split != VALIDATION and len(roots) == 1:
        raise UserError(
            f"The {split} split at {cfg.DATASETS.ROOT_DIR} belongs to the training or the test of {cfg.TEST.WEIGHT}, so it "
            f"promises too much; {advice}."
        )


def summary(record: Mapping[str, Any], pattern: str) -> list[str]:
    """Lines on a return pattern: for each pair of sets what was fitted, and what the test split says of it."""
    fits, tests = record["patterns"][pattern], record.get("test", {}).get(pattern, {})
    titles = ["sets", "same", "different", f"limit at {FALSE_ACCEPT:.0%}"]
    titles += ["error", "false", "true"] if tests else []
    rows = [titles]
    for name, values in fits.items():
        rate = calibration.threshold_rate(values, FALSE_ACCEPT)
        coarser = f" ({rate:.0%})" if rate != FALSE_ACCEPT else ""
        cells = [name, f"{values['same']:,}", f"{values['different']:,}"]
        cells.append(f"{values['limits'][str(rate)]:.3f}{coarser}")
        if test := tests.get(name):
            shares = (f"{share:.2%}" for share in test["accepted"][str(rate)])
            cells += [f"{test['error']:.4f}", *shares]
        rows.append(cells)
    return [
        "Calibrated on {triplets} triplets of {identities} identities ({split} of {data_set}); "
        "return pattern {}:".format(pattern, **record),
        *(f"{row[0]:22}{''.join(cell.rjust(13) for cell in row[1:])}" for row in rows),
    ]
