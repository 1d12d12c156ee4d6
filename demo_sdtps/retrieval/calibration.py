"""The probability that two triplets are of the same identity, and thresholds of their distance: demo-sdtps calibrate.

Both are fitted on labelled triplets that the model was not trained on, for each pair of sets of modalities (distances.py), as
distances by different columns differ (docs/search.md).
"""

import argparse
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import expit
from yacs.config import CfgNode

from demo_sdtps.config import UserError, load_cfg, with_values
from demo_sdtps.config.cli import print_lines
from demo_sdtps.config.common import FALSE_ACCEPT_RATES
from demo_sdtps.datasets import Sample, check_labelled, read_splits
from demo_sdtps.datasets.base import VALIDATION
from demo_sdtps.datasets.loaders import test_loader
from demo_sdtps.evaluation.distances import (
    make_comparison,
    names_present,
    present_modalities,
    set_distances,
    set_name,
)
from demo_sdtps.evaluation.extraction import extract_features, missing_cases
from demo_sdtps.evaluation.protocol import exclude_key
from demo_sdtps.modeling.checkpoints.loading import Checkpoint, stored_config, weights_file
from demo_sdtps.retrieval.features import encode_present, modality_mask
from demo_sdtps.retrieval.gallery import model_keys
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.files import check_output_file, read_json, sha256, write_json

if TYPE_CHECKING:
    from demo_sdtps.retrieval.extractor import Extractor

logger = logging.getLogger(__name__)
FEWEST = 10  # pairs of one identity that a fit has, and of different ones that a threshold accepts
MOST = 1000  # triplets whose pairs are compared
Pairs = tuple[np.ndarray, np.ndarray]
"""Distances, (n,), of the pairs of triplets of one identity by different cameras, and of those of different identities."""


class Calibration:
    """`fits` are what `fit` returns, by the two sets of modalities, such as "RGB, RGB+NI+TI", in either order."""

    def __init__(self, fits: Mapping[str, Mapping[str, Any]]):
        self.fits = {}
        for name, values in fits.items():
            one, other = (frozenset(side.split("+")) for side in name.split(", "))
            self.fits[one, other] = self.fits[other, one] = values

    def judge(
        self, distances: np.ndarray, one: np.ndarray, other: np.ndarray, rate: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of distances of triplets of the sets `one` and `other` (…, 3) bool: the probability that both are of the same
        identity, where pairs of one are as frequent as in the fit, and whether the distance is beyond the one that the share
        `rate` of the pairs of different identities is within, or the next coarser share that there are pairs enough for; nan
        and False for sets without a fit."""
        distances = distances.astype(np.float64)
        probability = np.full_like(distances, np.nan)
        is_far = np.zeros(distances.shape, bool)
        for sets, values in self.fits.items():
            first, second = map(modality_mask, sets)
            place = (one == first).all(-1) & (other == second).all(-1)
            place = np.broadcast_to(place, distances.shape)
            probability[place] = expit(values["offset"] - values["slope"] * distances[place])
            limit = values["limits"].get(str(threshold_rate(values, rate)), np.inf)
            is_far[place] = distances[place] > limit
        return probability, is_far

    def coarser(self, rate: float) -> list[str]:
        """A line on the sets whose threshold is a coarser one than that for `rate`, if any."""
        used = {sets: threshold_rate(values, rate) for sets, values in self.fits.items()}
        names = {
            f"{' and '.join(sorted({*map(set_name, sets)}))} ({other:.0%})"
            for sets, other in used.items()
            if other not in (rate, None)
        }
        text = f"Thresholds coarser than {rate:g}, by too few labelled pairs: "
        return [text + ", ".join(sorted(names))] if names else []

    def scales(self) -> dict[tuple[frozenset[str], frozenset[str]], tuple[float, float]]:
        """By two sets the distance of probability ½, and that in which the odds fall by e; none for sets without a fit.
        Distances that are scaled by these (`Comparison.scales`) ascend as the probability falls, whatever the sets."""
        return {
            sets: (values["offset"] / values["slope"], 1 / values["slope"])
            for sets, values in self.fits.items()
            if values["slope"] > 0
        }


def threshold_rate(fitted: Mapping[str, Any], rate: float) -> float | None:
    """The finest rate of what `fit` returned that is at least `rate`."""
    return min((float(one) for one in fitted["limits"] if float(one) >= rate), default=None)


def fit(pairs: Pairs, copies: int = 1) -> dict[str, Any]:
    """Slope, at least 0, and offset of the logistic function of the distance of the greatest likelihood, by Platt's targets
    (1999), and `limits`: by the rate of false acceptance the distance within which this share of the pairs of different
    identities lies. Every pair is there `copies` times."""
    same, different = pairs
    counts = {"same": len(same) // copies, "different": len(different) // copies}
    distances = np.concatenate(pairs).astype(np.float64)
    scale = float(distances.std()) or 1.0
    distances /= scale
    sizes = len(same), len(different)
    targets = np.repeat([(sizes[0] + 1) / (sizes[0] + 2), 1 / (sizes[1] + 2)], sizes)

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logits = parameters[1] - parameters[0] * distances
        errors = expit(logits) - targets
        gradient = np.array([-(errors * distances).mean(), errors.mean()])
        return float((np.logaddexp(0, logits) - targets * logits).mean()), gradient

    bounds, options = [(0, None), (None, None)], {"ftol": 1e-14, "gtol": 1e-9}
    slope, offset = minimize(loss, [1.0, 0.0], jac=True, bounds=bounds, options=options).x.tolist()
    rates = (rate for rate in FALSE_ACCEPT_RATES if rate * counts["different"] >= FEWEST)
    limits = {str(rate): float(np.quantile(different, rate)) for rate in rates}
    return {"slope": slope / scale, "offset": offset, "limits": limits, **counts}


class Labelled(NamedTuple):
    """Distances (n, n) float32 of labelled triplets, each taken as of every set of modalities that it has images of, infinite
    where two sets share nothing; the names of the `sets`, such as RGB+TI, the `identities` and the `cameras`, each (n,)."""

    distances: np.ndarray
    sets: np.ndarray
    identities: np.ndarray
    cameras: np.ndarray

    def pairs(self, rows: np.ndarray, columns: np.ndarray) -> Pairs:
        """The pairs of some rows and columns, by masks (n,)."""
        is_same, is_same_camera = (
            each[rows][:, None] == each[columns] for each in (self.identities, self.cameras)
        )
        distances = self.distances[rows][:, columns]
        return distances[is_same & ~is_same_camera], distances[~is_same]

    def set_pairs(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Each two sets that are compared, such as "RGB, RGB+NI+TI", and the rows and columns of their triplets, masks (n,)."""
        for one, other in combinations_with_replacement(dict.fromkeys(self.sets.tolist()), 2):
            rows, columns = self.sets == one, self.sets == other
            if np.isfinite(self.distances[rows][:, columns]).all():
                yield f"{one}, {other}", rows, columns


def label_distances(
    cfg: CfgNode, reid: "Extractor", samples: Sequence[Sample]
) -> Iterator[tuple[int, Labelled]]:
    """The distances of samples by each return pattern. Cameras of the training are known by their names, any other is their
    mean, as in a search. In place of the cameras are the scenes where the protocol excludes by these, or numbers where all
    triplets are by one camera."""
    model, identities = reid.model, np.array([one.identity for one in samples])
    cameras = np.array([getattr(one, exclude_key(cfg)) for one in samples])
    cameras = np.arange(len(samples)) if (cameras == cameras[0]).all() else cameras
    numbers = reid.camera_numbers([one.camera_name or None for one in samples], len(samples))
    known = [replace(one, camera=number) for one, number in zip(samples, numbers, strict=True)]
    cases = [*missing_cases(model.modalities).values()]
    masks = np.array([modality_mask({*model.modalities} - case) for case in cases])
    order = encode_present(masks).argsort()
    cases, masks = [cases[place] for place in order], masks[order]
    extracted = extract_features(cfg, model, test_loader(cfg, known), cases)
    present = present_modalities(samples, model.modalities)
    places = [np.flatnonzero((present >= mask).all(axis=1)) for mask in masks]
    sets, rows = np.repeat(np.arange(len(cases)), [*map(len, places)]), np.concatenate(places)
    names = np.array([set_name(names_present(mask)) for mask in masks])
    for pattern in extracted[0]:
        parts = [case[pattern][each] for case, each in zip(extracted, places, strict=True)]
        side = F.normalize(torch.cat(parts)), masks[sets]
        distances = set_distances(make_comparison(cfg, pattern), side, side).numpy()
        yield pattern, Labelled(distances, names[sets], identities[rows], cameras[rows])


def thin_out(samples: Sequence[Sample]) -> list[Sample]:
    """At most MOST of the samples, as many as possible of each identity."""
    by_identity: dict[int, list[Sample]] = defaultdict(list)
    for place in np.random.default_rng(0).permutation(len(samples)):
        by_identity[samples[place].identity].append(samples[place])
    members = list(by_identity.values())[: MOST // 2]
    return [sample for each in members for sample in each[: MOST // len(members)]]


def fit_sets(labelled: Labelled) -> dict[str, dict[str, Any]]:
    """What `fit` returns for the pairs of each two sets of modalities that there are enough of."""
    fits = {}
    for name, rows, columns in labelled.set_pairs():
        pairs = labelled.pairs(rows, columns)
        copies = 1 + np.array_equal(rows, columns)  # of equal sets every pair is there twice
        same, different = (len(each) // copies for each in pairs)
        if same >= FEWEST and max(FALSE_ACCEPT_RATES) * different >= FEWEST:
            fits[name] = fit(pairs, copies)
    return fits


def calibrate(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Fit all return patterns on the split --split, and write the calibration beside the checkpoint."""
    from demo_sdtps.retrieval.extractor import make_extractor  # which imports this file

    weights, split = weights_file(cfg.TEST.WEIGHT), arguments.split
    path = check_output_file(calibration_file(weights), ".json", arguments.overwrite)
    check_split(cfg, split)
    cfg = cfg if split == VALIDATION else with_values(cfg, {"DATASETS.VALIDATION": 0.0})
    samples = thin_out(read_splits(cfg, (split,))[split])
    reid = make_extractor(cfg).to(choose_device(cfg))
    labelled = label_distances(cfg, reid, samples)
    patterns = {str(pattern): fit_sets(distances) for pattern, distances in labelled}
    if not any(patterns.values()):
        raise UserError(
            f"There are too few pairs of labelled triplets: {FEWEST} of one identity by different cameras are needed, and "
            f"{FEWEST / max(FALSE_ACCEPT_RATES):.0f} of different ones; give more images."
        )
    record = {"checkpoint_sha256": sha256(weights), "settings": calibration_settings(cfg)}
    write_json(path, {**record, "patterns": patterns})
    for sets, values in patterns[str(cfg.TEST.RETURN_PATTERN)].items():
        limits = ", ".join(f"{rate}: {limit:.3f}" for rate, limit in values["limits"].items())
        print_lines(f"{sets}: {values['same']} and {values['different']} pairs; {limits}")
    print_lines(f"Wrote {path}, {len(samples)} triplets; other sets have too few pairs")


def check_split(cfg: CfgNode, split: str) -> None:
    """Raise `UserError` where a split has identities of the training, or those of the test that the model is reported by."""
    check_labelled(cfg)
    trained = load_cfg(stored_config(cfg.TEST.WEIGHT)).DATASETS
    roots = {Path(data.ROOT_DIR).resolve() for data in (cfg.DATASETS, trained)}
    is_held_out = trained.VALIDATION and cfg.DATASETS.VALIDATION == trained.VALIDATION
    if not (is_held_out if split == VALIDATION else len(roots) > 1):
        raise UserError(
            f"The {split} split belongs to the training or the test of {cfg.TEST.WEIGHT}, so its distances promise too much; "
            "train with DATASETS.VALIDATION 0.3, and leave it as it was then, or give other labelled images by "
            "DATASETS.ROOT_DIR and --split."
        )


def calibration_file(checkpoint: Path) -> Path:
    """Where the calibration of a checkpoint is."""
    return checkpoint.with_suffix(".calibration.json")


def stored_calibration(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What `calibrate` wrote beside a checkpoint, or a saved `Extractor` has of it."""
    path = calibration_file(checkpoint.path)
    if not path.exists():
        return checkpoint.origin.get("calibration")
    form = {"checkpoint_sha256": str, "settings": dict, "patterns": dict}
    record = read_json(path, form, {}, "run demo-sdtps calibrate again, or remove it")
    if record["checkpoint_sha256"] != sha256(checkpoint.path):
        advice = "run demo-sdtps calibrate again with --overwrite"
        logger.warning("%s is of other weights, and is not used; %s.", path, advice)
        return None
    return record


def make_calibrations(record: Mapping[str, Any] | None, cfg: CfgNode) -> dict[int, Calibration]:
    """The calibration of each return pattern; none where the record, if there is one, is of another configuration."""
    now = calibration_settings(cfg)
    if not record:
        return {}
    if differing := [key for key, value in record["settings"].items() if now.get(key) != value]:
        logger.warning("The calibration is of another value of %s, and is not used.", differing[0])
        return {}
    return {int(pattern): Calibration(fits) for pattern, fits in record["patterns"].items()}


def calibration_settings(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys that a calibration depends on."""
    return {**model_keys(cfg), "TEST.CROSS_MODAL_DISTANCE": cfg.TEST.CROSS_MODAL_DISTANCE}
