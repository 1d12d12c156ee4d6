"""The logistic regression and the thresholds of a calibration."""

import math

import numpy as np
import pytest
from numeric import generator

from demo_sdtps.config import UserError
from demo_sdtps.retrieval.calibration import Calibration, fit

WHOLE, WHOLE_SET = "RGB+NI+TI, RGB+NI+TI", np.ones(3, bool)


def draw_pairs(same, different, seed=0):
    """Distances of pairs of one identity and of different ones, which overlap."""
    draw = np.random.default_rng(generator(seed).initial_seed())
    return draw.gamma(3, 0.1, same), draw.gamma(9, 0.12, different)


def test_the_fit_is_platts():
    """scikit-learn's logistic regression, given each pair with both labels and Platt's targets as weights."""
    from sklearn.linear_model import LogisticRegression

    pairs = draw_pairs(300, 4000)
    targets = np.repeat([301 / 302, 1 / 4002], [300, 4000])
    distances = np.concatenate(pairs)[:, None]
    model = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000).fit(
        np.concatenate([distances, distances]),
        np.repeat([1, 0], 4300),
        np.concatenate([targets, 1 - targets]),
    )
    fitted = fit(pairs)
    assert fitted["slope"] == pytest.approx(-model.coef_[0, 0], rel=1e-3)
    assert fitted["offset"] == pytest.approx(model.intercept_[0], rel=1e-3)
    actual, _ = Calibration({WHOLE: fitted}).judge(distances[:, 0], WHOLE_SET, WHOLE_SET, 0.01)
    np.testing.assert_allclose(actual, model.predict_proba(distances)[:, 1], atol=1e-4)
    small = fit((pairs[0] * 1e-4, pairs[1] * 1e-4))
    assert small["slope"] == pytest.approx(1e4 * fitted["slope"], rel=1e-3)
    assert (fitted["same"], fitted["different"]) == (300, 4000)
    twice = fit([np.repeat(each, 2) for each in pairs], copies=2)  # which are no more pairs
    assert (twice["same"], twice["different"]) == (300, 4000)
    assert twice["limits"].keys() == fitted["limits"].keys()
    reversed_kinds = fit(pairs[::-1])  # no model whose probability rises with the distance
    assert reversed_kinds["slope"] == 0
    assert 1 / (1 + math.exp(-reversed_kinds["offset"])) == pytest.approx(4000 / 4300, rel=1e-3)


def test_a_threshold_accepts_its_share_of_different_identities():
    """Rates that fewer than ten pairs would decide are left out."""
    fitted = fit(draw_pairs(100, 5000))
    assert [*fitted["limits"]] == ["0.01", "0.05"]
    calibration = Calibration({WHOLE: fitted})
    _, different = draw_pairs(100, 5000)
    for rate in (0.01, 0.05):
        _, is_unknown = calibration.judge(different, WHOLE_SET, WHOLE_SET, rate)
        assert (~is_unknown).mean() == pytest.approx(rate)
    calibration.check_rate(0.01)
    with pytest.raises(UserError, match=r"0\.001 is none of this calibration \(0.01, 0.05\)"):
        calibration.check_rate(0.001)
