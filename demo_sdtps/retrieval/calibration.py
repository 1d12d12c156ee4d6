"""The probability that two triplets are of the same identity, and thresholds of their distance (docs/retrieval.md).

Both are fitted on labelled triplets that the model was not trained on, for each pair of sets of modalities (distances.py), as
distances by different columns differ.
"""

import argparse
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import expit
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import FALSE_ACCEPT, FALSE_ACCEPT_RATES
from demo_sdtps.datasets import Sample
from demo_sdtps.datasets.base import SPLITS, VALIDATION
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.command import load_model_and_data
from demo_sdtps.evaluation.distances import (
    comparison_of,
    names_of,
    present_in,
    set_distances,
    set_of,
)
from demo_sdtps.evaluation.extraction import cases_of, extract_features
from demo_sdtps.evaluation.protocol import exclude_key
from demo_sdtps.modeling import DeMo
from demo_sdtps.modeling.checkpoints.loading import Checkpoint, weights_file
from demo_sdtps.retrieval.origin import model_keys
from demo_sdtps.runtime.files import check_output_file, read_json, sha256, write_json
from demo_sdtps.runtime.progress import progress

logger = logging.getLogger(__name__)
MOST = 1000  # triplets whose pairs are compared
FEWEST = 10  # pairs that a fit has of each kind, and that a threshold accepts
BINS = 15  # of the calibration error
SETS = 8  # numbers of sets of modalities

Set = np.ndarray | int
Pairs = tuple[np.ndarray, np.ndarray]
"""Distances, (n,), of the pairs of triplets of one identity by different cameras, and of those of different identities."""


class Calibration:
    """The probability of the same identity as a logistic function of the distance (Platt, 1999), and the largest distances that
    are accepted at a rate of false acceptance. `fits` are what `fit` returns, by the two sets, such as "RGB, RGB+NI+TI".

    Arguments of its methods are distances, and the sets of the two triplets of each (uint8); they are broadcast.
    """

    def __init__(self, fits: Mapping[str, Mapping[str, Any]]):
        self.slope, self.offset = np.full((2, SETS, SETS), np.nan)
        self.limits = {rate: np.full((SETS, SETS), -np.inf) for rate in FALSE_ACCEPT_RATES}
        for name, values in fits.items():
            sets = [set_of(side.split("+")) for side in name.split(", ")]
            for place in {tuple(sets), tuple(reversed(sets))}:
                self.slope[place], self.offset[place] = values["slope"], values["offset"]
                for rate, limit in values["limits"].items():
                    self.limits[float(rate)][place] = limit

    def probability(self, distances: np.ndarray, one: Set, other: Set) -> np.ndarray:
        """That both are of one identity, where pairs of one are as frequent as in the fit; nan where it is not known."""
        return expit(self.offset[one, other] - self.slope[one, other] * distances)

    def is_unknown(
        self,
        distances: np.ndarray,
        one: Set,
        other: Set,
        rate: float = FALSE_ACCEPT,
    ) -> np.ndarray:
        """Whether a distance is beyond that which the share `rate` of the pairs of different identities is within."""
        return distances > self.limits[rate][one, other]


def fit(pairs: Pairs) -> dict[str, Any]:
    """Slope and offset of the logistic function with the greatest likelihood, by Platt's targets, and the thresholds."""
    same, different = pairs
    distances = np.concatenate(pairs).astype(np.float64)
    targets = np.repeat(
        [(len(same) + 1) / (len(same) + 2), 1 / (len(different) + 2)], [len(same), len(different)]
    )

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logits = parameters[1] - parameters[0] * distances
        errors = expit(logits) - targets
        gradient = np.array([-(errors * distances).mean(), errors.mean()])
        return float((np.logaddexp(0, logits) - targets * logits).mean()), gradient

    slope, offset = minimize(loss, np.array([1.0, 0.0]), jac=True, method="BFGS").x.tolist()
    limits = {
        str(rate): float(np.quantile(different, rate))
        for rate in FALSE_ACCEPT_RATES
        if rate * len(different) >= FEWEST
    }
    counts = {"same": len(same), "different": len(different)}
    return {"slope": slope, "offset": offset, "limits": limits, **counts}


def quality(fitted: Mapping[str, Any], sets: str, pairs: Pairs) -> dict[str, Any]:
    """What `fit` returned of these sets, measured by other pairs: the expected calibration error, where pairs of one identity
    count for the share that they had in the fit, and by rate the shares of the pairs of different identities and of those of
    one that are accepted."""
    calibration = Calibration({sets: fitted})
    one, other = (set_of(side.split("+")) for side in sets.split(", "))
    counts = [fitted["same"], fitted["different"]]
    weights = np.repeat(np.divide(counts, [*map(len, pairs)]) / sum(counts), [*map(len, pairs)])
    probabilities = calibration.probability(np.concatenate(pairs), one, other)
    is_same = np.repeat([1.0, 0.0], [*map(len, pairs)])
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights * (is_same - probabilities), BINS)
    accepted = {
        rate: [
            1 - float(calibration.is_unknown(distances, one, other, float(rate)).mean())
            for distances in reversed(pairs)
        ]
        for rate in fitted["limits"]
    }
    return {"error": float(np.abs(gaps).sum()), "accepted": accepted}


class Block(NamedTuple):
    """Distances (n, m) of labelled triplets by a return pattern, those of rows of one set of modalities and those of columns of
    another, `sets` such as "RGB, RGB+NI+TI"; the `identities` of rows and columns, and their `cameras`."""

    pattern: int
    sets: str
    distances: np.ndarray
    identities: tuple[np.ndarray, np.ndarray]
    cameras: tuple[np.ndarray, np.ndarray]

    def pairs(self, rows: Any = slice(None), columns: Any = slice(None)) -> Pairs:
        """The pairs of some rows and columns, as masks: those of one identity by different cameras, and of different ones."""
        is_same, is_near = (
            one[rows][:, None] == other[columns] for one, other in (self.identities, self.cameras)
        )
        distances = self.distances[rows][:, columns]
        return distances[is_same & ~is_near], distances[~is_same]


def labelled_distances(cfg: CfgNode, model: DeMo, samples: Sequence[Sample]) -> Iterator[Block]:
    """The distances of at most MOST of the samples, of whole identities, by return pattern and pair of sets of modalities;
    each triplet is taken as of every set that it has images of. In place of the cameras are the scenes where the protocol
    excludes by these, and different numbers where all triplets are by one camera."""
    by_identity: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_identity[sample.identity].append(sample)
    chosen: list[Sample] = []
    for number in torch.randperm(len(by_identity), generator=torch.Generator().manual_seed(0)):
        members = list(by_identity.values())[number]
        chosen += members if not chosen or len(chosen) + len(members) <= MOST else []
    identities, cameras = (
        np.array([getattr(sample, name) for sample in chosen])
        for name in ("identity", exclude_key(cfg))
    )
    if (cameras == cameras[0]).all():
        cameras = np.arange(len(chosen))
    cases = cases_of(model.modalities)
    sets = [set_of(set(model.modalities) - missing) for missing in cases.values()]
    present = present_in(chosen, model.modalities)
    rows = {each: np.flatnonzero(present & each == each) for each in sets}
    features = extract_features(cfg, model, test_loader(cfg, chosen), [*cases.values()])
    for pattern in progress(features[0], "comparing", unit="return pattern"):
        comparison = comparison_of(cfg, pattern)
        sides = {
            each: (F.normalize(of_case[pattern][rows[each]]), np.full(len(rows[each]), each))
            for each, of_case in zip(sets, features, strict=True)
        }
        for one, other in ((one, other) for one in sets for other in sets if one <= other):
            if comparison.is_defined(one, other) and len(rows[one]) and len(rows[other]):
                yield Block(
                    pattern,
                    f"{names_of(one)}, {names_of(other)}",
                    set_distances(comparison, sides[one], sides[other]).numpy(),
                    (identities[rows[one]], identities[rows[other]]),
                    (cameras[rows[one]], cameras[rows[other]]),
                )


def calibration_file(checkpoint: Path) -> Path:
    """Where the calibration of a checkpoint is."""
    return checkpoint.with_suffix(".calibration.json")


def stored_calibration(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What `calibrate` wrote beside a checkpoint, or a saved `Extractor` has of it."""
    path = calibration_file(checkpoint.path)
    record = read_json(path)
    if record and record["checkpoint_sha256"] != sha256(checkpoint.path):
        logger.warning(
            "%s is of other weights, and is not used; run demo-sdtps calibrate again with --overwrite.",
            path,
        )
        return None
    return record or checkpoint.origin.get("calibration")


def calibration_of(
    record: Mapping[str, Any] | None, cfg: CfgNode, pattern: int | None
) -> Calibration | None:
    """The calibration of a return pattern; None where there is none for the configuration."""
    if not record or str(pattern) not in record["patterns"]:
        return None
    now = settings_of(cfg)
    if differing := [key for key, value in record["settings"].items() if now.get(key) != value]:
        logger.warning("The calibration is of another value of %s, and is not used.", differing[0])
        return None
    return Calibration(record["patterns"][str(pattern)])


def settings_of(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys that a calibration depends on."""
    how = "TEST.CROSS_MODAL_DISTANCE"
    return {**model_keys(cfg), how: cfg.TEST.CROSS_MODAL_DISTANCE}


def calibrate(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Fit all return patterns, write the calibration beside the checkpoint, and with --test measure it on the test split."""
    weights, split = weights_file(cfg.TEST.WEIGHT), arguments.split
    path = calibration_file(weights)
    check_output_file(path, ".json", arguments.overwrite)
    if split == VALIDATION and not cfg.DATASETS.VALIDATION:
        raise UserError(
            f"{weights} was trained on all identities of the train split, whose distances promise too much; train with "
            "DATASETS.VALIDATION 0.2, or give other labelled images by DATASETS.ROOT_DIR and --split."
        )
    tested = SPLITS[1:] if arguments.test else ()
    model, splits = load_model_and_data(cfg, (split, *tested))
    samples = splits[split]
    patterns: dict[str, dict[str, Any]] = defaultdict(dict)
    for block in labelled_distances(cfg, model, samples):
        if min(map(len, pairs := block.pairs())) >= FEWEST:
            patterns[str(block.pattern)][block.sets] = fit(pairs)
    if not patterns:
        raise UserError(
            f"The {split} split has fewer than {FEWEST} pairs of the same identity by different cameras, or of different "
            "identities; give more images."
        )
    counts = {"triplets": len(samples), "identities": len({one.identity for one in samples})}
    about = {"data_set": cfg.DATASETS.NAMES, "split": split, **counts}
    record = {"checkpoint_sha256": sha256(weights), "settings": settings_of(cfg), **about}
    record["patterns"] = patterns
    if arguments.test:
        record["test"] = defaultdict(dict)
        distinct = [*dict.fromkeys(sample for name in tested for sample in splits[name])]
        for block in labelled_distances(cfg, model, distinct):
            if fitted := patterns[str(block.pattern)].get(block.sets):
                measured = quality(fitted, block.sets, block.pairs())
                record["test"][str(block.pattern)][block.sets] = measured
    write_json(path, record)
    print_lines(*summary(record, str(cfg.TEST.RETURN_PATTERN)), path)


def summary(record: Mapping[str, Any], pattern: str) -> list[str]:
    """Lines on a return pattern: for each pair of sets what was fitted, and what the test split says of it."""
    fits, tests = record["patterns"][pattern], record.get("test", {}).get(pattern, {})
    rate = str(FALSE_ACCEPT)
    titles = ["sets", "same", "different", f"limit at {FALSE_ACCEPT:.0%}"]
    titles += ["error", "false", "true"] if tests else []
    rows = [titles]
    for name, values in fits.items():
        cells = [name, f"{values['same']:,}", f"{values['different']:,}"]
        cells.append(f"{values['limits'][rate]:.3f}" if rate in values["limits"] else "–")
        if test := tests.get(name):
            shares = (f"{share:.2%}" for share in test["accepted"].get(rate, ()))
            cells += [f"{test['error']:.4f}", *shares]
        rows.append(cells)
    return [
        "Calibrated on {triplets} triplets of {identities} identities ({split} of {data_set}); "
        "return pattern {}:".format(pattern, **record),
        *(f"{row[0]:16}{''.join(cell.rjust(13) for cell in row[1:])}" for row in rows),
    ]
