"""The probability that two triplets are of the same identity, and thresholds of their distance (docs/retrieval.md).

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
from demo_sdtps.evaluation.distances import set_of
from demo_sdtps.modeling.checkpoints.loading import Checkpoint
from demo_sdtps.retrieval.origin import model_keys
from demo_sdtps.runtime.files import read_json, sha256

logger = logging.getLogger(__name__)
FEWEST = 10  # pairs of one identity that a fit has, and of different ones that a threshold accepts
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
        self.limits = {rate: np.full((SETS, SETS), np.nan) for rate in FALSE_ACCEPT_RATES}
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
        """Whether a distance is beyond that which the share `rate` of the pairs of different identities is within; of sets
        without a fit all are."""
        return ~(distances <= self.limits[rate][one, other])

    def check_rate(self, rate: float) -> None:
        """Raise `UserError` for a rate that no fit has."""
        known = [one for one, limits in self.limits.items() if np.isfinite(limits).any()]
        if rate not in known:
            raise UserError(
                f"A false acceptance of {rate:g} is none of this calibration ({', '.join(f'{one:g}' for one in known)}); give "
                "one of these, or calibrate on more images for a smaller one."
            )


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
