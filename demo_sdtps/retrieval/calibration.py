"""The probability that two triplets are of the same identity, and thresholds of their distance (docs/search.md).

Both are fitted on labelled triplets that the model was not trained on, for each pair of sets of modalities (distances.py), as
distances by different columns differ.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from yacs.config import CfgNode

from demo_sdtps.config import UserError
from demo_sdtps.config.common import FALSE_ACCEPT, FALSE_ACCEPT_RATES
from demo_sdtps.evaluation.distances import set_name
from demo_sdtps.modeling.checkpoints.loading import Checkpoint
from demo_sdtps.modeling.checkpoints.records import CALIBRATION
from demo_sdtps.retrieval.features import modality_mask
from demo_sdtps.retrieval.origin import model_keys
from demo_sdtps.runtime.files import read_json, sha256

logger = logging.getLogger(__name__)
FEWEST = 10  # pairs of one identity that a fit has, and of different ones that a threshold accepts
BINS = 15  # of the calibration error

Pairs = tuple[np.ndarray, np.ndarray]
"""Distances, (n,), of the pairs of triplets of one identity by different cameras, and of those of different identities."""


class Calibration:
    """The probability of the same identity as a logistic function of the distance (Platt, 1999), and the largest distances that
    are accepted at a rate of false acceptance. `fits` are what `fit` returns, by the two sets, such as "RGB, RGB+NI+TI"."""

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
        rates: dict[str, set[float]] = {}
        for (one, other), values in self.fits.items():
            if (used := threshold_rate(values, rate)) not in (rate, None):
                name = " and ".join(sorted({set_name(one), set_name(other)}))
                rates.setdefault(name, set()).add(used)
        listed = ", ".join(f"{name} ({max(used):.0%})" for name, used in sorted(rates.items()))
        text = f"Thresholds coarser than {rate:g}, by too few labelled pairs: {listed}"
        return [text] if listed else []

    def scales(self) -> dict[tuple[frozenset[str], frozenset[str]], tuple[float, float]]:
        """By two sets the distance of probability ½, and that in which the odds fall by e; none for sets without a fit.
        Distances that are scaled by these (`Comparison.scales`) ascend as the probability falls, whatever the sets."""
        return {
            sets: (values["offset"] / values["slope"], 1 / values["slope"])
            for sets, values in self.fits.items()
            if values["slope"] > 0
        }

    def check_rate(self, rate: float) -> None:
        """Raise `UserError` for a rate, other than the default, that no fit has."""
        limits = set().union(*(values["limits"] for values in self.fits.values()))
        known = [one for one in FALSE_ACCEPT_RATES if str(one) in limits]
        if rate not in (*known, FALSE_ACCEPT):
            raise UserError(
                f"A false acceptance of {rate} is none of this calibration ({', '.join(f'{one:g}' for one in known)}); give "
                "one of these, or calibrate on more images for a smaller one."
            )


def threshold_rate(fitted: Mapping[str, Any], rate: float) -> float | None:
    """The finest rate of what `fit` returned that is at least `rate`."""
    return min((float(one) for one in fitted["limits"] if float(one) >= rate), default=None)


def fit(pairs: Pairs, copies: int = 1) -> dict[str, Any]:
    """Slope, at least 0, and offset of the logistic function of the greatest likelihood, by Platt's targets; the thresholds.
    Every pair is there `copies` times."""
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


def quality(fitted: Mapping[str, Any], pairs: Pairs) -> dict[str, Any]:
    """What `fit` returned, measured by other pairs: the expected calibration error, by the shares of the fit, and by rate
    what is accepted of the pairs of different identities and of one."""
    counts, sizes = [fitted["same"], fitted["different"]], [*map(len, pairs)]
    weights = np.repeat(np.divide(counts, sizes) / sum(counts), sizes)
    probabilities = expit(fitted["offset"] - fitted["slope"] * np.concatenate(pairs))
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights * (np.repeat([1.0, 0.0], sizes) - probabilities), BINS)
    accepted = {
        rate: [float((distances <= limit).mean()) for distances in reversed(pairs)]
        for rate, limit in fitted["limits"].items()
    }
    return {"error": float(np.abs(gaps).sum()), "accepted": accepted}


def calibration_file(checkpoint: Path) -> Path:
    """Where the calibration of a checkpoint is."""
    return checkpoint.with_suffix(".calibration.json")


def stored_calibration(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What `calibrate` wrote beside a checkpoint, or a saved `Extractor` has of it."""
    path = calibration_file(checkpoint.path)
    if not path.exists():
        return checkpoint.origin.get("calibration")
    record = read_json(path, CALIBRATION, {}, "run demo-sdtps calibrate again, or remove it")
    if record["checkpoint_sha256"] != sha256(checkpoint.path):
        advice = "run demo-sdtps calibrate again with --overwrite"
        logger.warning("%s is of other weights, and is not used; %s.", path, advice)
        return None
    return {name: record[name] for name in CALIBRATION}


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
