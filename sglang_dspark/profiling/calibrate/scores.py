"""How good predicted survivals are: Brier score, AUC, what chance alone shows, a better bound."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.sts import BINS, bin_of, calibration_error

F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PERFECT_DRAWS = 100


def brier(survival: F64, survived: Bools) -> float:
    """Mean squared difference 0..1 of survivals [n] and outcomes [n]; NaN without pairs."""
    return float(np.mean((survival - survived) ** 2)) if len(survival) else float("nan")


def auc(survival: F64, survived: Bools) -> float:
    """P(a block that survived was given more than one that did not), ties half.

    NaN where all outcomes are the same.
    """
    from scipy.stats import rankdata

    positive = int(survived.sum())
    negative = len(survived) - positive
    if not positive or not negative:
        return float("nan")
    rank_sum = float(rankdata(survival)[survived].sum())
    return (rank_sum - positive * (positive + 1) / 2) / (positive * negative)


def perfect_error(survival: F64, seed: int = 0, bins: int = BINS) -> tuple[float, float]:
    """(mean, 95 % bound) of the calibration error if every survival [n] were exactly right.

    Outcomes are drawn from the predictions themselves, so this is what the sample size alone
    makes of a perfect predictor.
    """
    rng = np.random.default_rng(seed)
    draws = [
        calibration_error(survival, rng.random(len(survival)) < survival, bins)
        for _ in range(PERFECT_DRAWS)
    ]
    return float(np.mean(draws)), float(np.quantile(draws, 0.95))


def best_monotone(fit: F64, fit_survived: Bools, held_out: F64) -> F64:
    """Held-out survivals after the best rising map, fitted on the other half.

    fit, held_out: survivals [n], [m]. Isotonic regression; between its points the map is linear,
    beyond them level. No choice of temperatures ranks the blocks better than they are ranked now,
    so this is about what any recalibration of one position could reach.
    """
    from scipy.optimize import isotonic_regression

    values, where = np.unique(fit, return_inverse=True)
    weights = np.bincount(where).astype(np.float64)
    means = np.bincount(where, fit_survived.astype(np.float64)) / weights
    level = isotonic_regression(means, weights=weights).x
    mapped: F64 = np.interp(held_out, values, level)
    return mapped


def reliability_curve(
    survival: F64, survived: Bools, bins: int = BINS
) -> list[tuple[float, float, int]]:
    """(mean predicted, share that survived, blocks) of every bin that has blocks."""
    where = bin_of(survival, bins)
    count = np.bincount(where, minlength=bins)
    predicted = np.bincount(where, survival, bins)
    observed = np.bincount(where, survived.astype(np.float64), bins)
    return [
        (float(predicted[b] / count[b]), float(observed[b] / count[b]), int(count[b]))
        for b in np.flatnonzero(count)
    ]
