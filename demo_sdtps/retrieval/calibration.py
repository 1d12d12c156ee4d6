"""The probability that two triplets are of the same identity, and thresholds of their distance: demo-sdtps calibrate.

Both are fitted on labelled triplets that the model was not trained on, for each pair of sets of modalities (distances.py), as
distances by different columns differ (docs/search.md).
"""

import argparse
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
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
    present_modalities,
    set_distances,
    set_name,
)
from demo_sdtps.evaluation.extraction import extract_features, missing_cases
from demo_sdtps.evaluation.protocol import exclude_key
from demo_sdtps.modeling.checkpoints.loading import Checkpoint, stored_config, weights_file
from demo_sdtps.retrieval.features import modality_mask
from demo_sdtps.retrieval.gallery import model_keys
from demo_sdtps.runtime.device import choose_device
from demo_sdtps.runtime.files import check_output_file, read_json, sha256, write_json

if TYPE_CHECKING:
    from demo_sdtps.retrieval.extractor import Extractor

logger = logging.getLogger(__name__)
FEWEST = 10  # pairs of one identity that a fit has, and of different ones that a threshold accepts
Pairs = tuple[np.ndarray, np.ndarray]
"""Distances, (n,), of the pairs of triplets of one identity by different cameras, and of those of different identities; of one
set of modalities every pair is there in both orders."""


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
            limits = (far for share, far in values["limits"].items() if float(share) >= rate)
            is_far[place] = distances[place] > min(limits, default=np.inf)
        return probability, is_far

    def scales(self) -> dict[tuple[frozenset[str], frozenset[str]], tuple[float, float]]:
        """By two sets the distance of probability ½, and that in which the odds fall by e; none for sets without a fit.
        Distances that are scaled by these (`Comparison.scales`) ascend as the probability falls, whatever the sets."""
        return {
            sets: (values["offset"] / values["slope"], 1 / values["slope"])
            for sets, values in self.fits.items()
            if values["slope"] > 0
        }


def fit(pairs: Pairs) -> dict[str, Any]:
    """Slope, at least 0, and offset of the logistic function of the distance of the greatest likelihood, by Platt's targets
    (1999), and `limits`: by the rate of false acceptance the distance within which this share of the pairs of different
    identities lies, for the rates that FEWEST of them suffice for."""
    same, different = map(len, pairs)
    distances = np.concatenate(pairs).astype(np.float64)
    targets = np.repeat([(same + 1) / (same + 2), 1 / (different + 2)], [same, different])

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logits = parameters[1] - parameters[0] * distances
        errors = expit(logits) - targets
        gradient = np.array([-(errors * distances).mean(), errors.mean()])
        return float((np.logaddexp(0, logits) - targets * logits).mean()), gradient

    bounds = [(0, None), (None, None)]
    slope, offset = minimize(loss, [1.0, 0.0], jac=True, bounds=bounds, tol=1e-14).x.tolist()
    rates = (rate for rate in FALSE_ACCEPT_RATES if rate * different >= FEWEST)
    limits = {str(rate): float(np.quantile(pairs[1], rate)) for rate in rates}
    counts = {"same": same, "different": different}
    return {"slope": slope, "offset": offset, "limits": limits, **counts}


class Labelled(NamedTuple):
    """Distances (n, m) float32 of labelled triplets, taken as of one of two `sets` of modalities, such as "RGB, RGB+NI+TI",
    from those taken as of the other; and the identities and the cameras of both, (n,) and (m,)."""

    sets: str
    distances: np.ndarray
    identities: Sequence[np.ndarray]
    cameras: Sequence[np.ndarray]

    def pairs(self, rows: Any = slice(None), columns: Any = slice(None)) -> Pairs:
        """The pairs of some rows and columns, by default of all."""
        is_same, is_same_camera = (
            one[rows][:, None] == other[columns] for one, other in (self.identities, self.cameras)
        )
        distances = self.distances[rows][:, columns]
        return distances[is_same & ~is_same_camera], distances[~is_same]


def label_distances(
    cfg: CfgNode, reid: "Extractor", samples: Sequence[Sample]
) -> Iterator[tuple[int, Labelled]]:
    """The distances of samples by each return pattern and two sets of modalities that are compared. Cameras of the training are
    known by their names, any other is their mean, as in a search. In place of the cameras are the scenes where the protocol
    excludes by these, or numbers where all triplets are by one camera."""
    names = reid.model.modalities
    identities = np.array([one.identity for one in samples])
    cameras = np.array([getattr(one, exclude_key(cfg)) for one in samples])
    cameras = np.arange(len(samples)) if (cameras == cameras[0]).all() else cameras
    numbers = reid.camera_numbers([one.camera_name or None for one in samples], len(samples))
    known = [replace(one, camera=number) for one, number in zip(samples, numbers, strict=True)]
    cases = [*missing_cases(names).values()][::-1]
    extracted = extract_features(cfg, reid.model, test_loader(cfg, known), cases)
    present, sets = present_modalities(samples, names), [frozenset(names) - case for case in cases]
    masks = [modality_mask(each) for each in sets]
    places = [np.flatnonzero((present >= mask).all(axis=1)) for mask in masks]
    for pattern, pair in product(extracted[0], combinations_with_replacement(range(len(sets)), 2)):
        comparison, rows = make_comparison(cfg, pattern), [places[each] for each in pair]
        if not comparison.is_defined(*(sets[each] for each in pair)) or not all(map(len, rows)):
            continue
        features = [F.normalize(extracted[each][pattern][places[each]]) for each in pair]
        query, gallery = (
            (side, np.tile(masks[each], (len(side), 1)))
            for side, each in zip(features, pair, strict=True)
        )
        distances = set_distances(comparison, query, gallery).numpy()
        labels = ([each[side] for side in rows] for each in (identities, cameras))
        yield (
            pattern,
            Labelled(", ".join(set_name(sets[each]) for each in pair), distances, *labels),
        )


def calibrate(arguments: argparse.Namespace, cfg: CfgNode) -> None:
    """Fit all return patterns on the split --split, and write the calibration beside the checkpoint. Raises `UserError` for
    identities of the training, or of the test that the model is reported by, and for too few pairs."""
    from demo_sdtps.retrieval.extractor import make_extractor  # which imports this file

    weights, split = weights_file(cfg.TEST.WEIGHT), arguments.split
    path = check_output_file(calibration_file(weights), ".json", arguments.overwrite)
    check_labelled(cfg)
    trained = load_cfg(stored_config(cfg.TEST.WEIGHT)).DATASETS
    is_new = Path(cfg.DATASETS.ROOT_DIR).resolve() != Path(trained.ROOT_DIR).resolve()
    if split == VALIDATION:
        is_new = trained.VALIDATION and cfg.DATASETS.VALIDATION == trained.VALIDATION
    else:
        cfg = with_values(cfg, {"DATASETS.VALIDATION": 0.0})
    if not is_new:
        raise UserError(
            f"The {split} split belongs to the training or the test of {weights}, so its distances promise too much; train "
            "with DATASETS.VALIDATION 0.3, and leave it as it was then, or give other labelled images by DATASETS.ROOT_DIR "
            "and --split."
        )
    samples = read_splits(cfg, (split,))[split]
    reid = make_extractor(cfg).to(choose_device(cfg))
    patterns: dict[str, dict[str, Any]] = defaultdict(dict)
    for pattern, labelled in label_distances(cfg, reid, samples):
        same, different = pairs = labelled.pairs()
        if len(same) >= FEWEST and max(FALSE_ACCEPT_RATES) * len(different) >= FEWEST:
            patterns[str(pattern)][labelled.sets] = fit(pairs)
    if not patterns:
        raise UserError(
            f"There are too few pairs of labelled triplets: {FEWEST} of one identity by different cameras are needed, and "
            f"{FEWEST / max(FALSE_ACCEPT_RATES):.0f} of different ones; give more images."
        )
    record = {"checkpoint_sha256": sha256(weights), "settings": calibration_settings(cfg)}
    write_json(path, {**record, "patterns": patterns})
    sets = "; ".join(patterns[str(cfg.TEST.RETURN_PATTERN)])
    print_lines(f"Wrote {path}, {len(samples)} triplets, by pairs of sets of modalities: {sets}")


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
    if record["checkpoint_sha256"] == sha256(checkpoint.path):
        return record
    logger.warning("%s is of other weights, and is not used.", path)
    return None


def make_calibrations(record: Mapping[str, Any] | None, cfg: CfgNode) -> dict[int, Calibration]:
    """The calibration of each return pattern; none where the record, if there is one, is of another configuration."""
    if record and record["settings"] == calibration_settings(cfg):
        return {int(pattern): Calibration(fits) for pattern, fits in record["patterns"].items()}
    if record:
        logger.warning("The calibration is of another configuration, and is not used.")
    return {}


def calibration_settings(cfg: CfgNode) -> dict[str, Any]:
    """The configuration keys that a calibration depends on."""
    return {**model_keys(cfg), "TEST.CROSS_MODAL_DISTANCE": cfg.TEST.CROSS_MODAL_DISTANCE}
