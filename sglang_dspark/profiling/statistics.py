"""Numbers with their uncertainty: the ratio of two arms over interleaved rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


def geometric_mean(ratios: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean that a ratio and its inverse agree on."""
    return np.asarray(np.exp(np.log(ratios).mean(axis=axis)))


def paired_ratio(ours: Sequence[float], control: Sequence[float], seed: int = 0) -> Interval:
    """Geometric mean of the per-round ratios ours / control, with a bootstrap 95 % interval.

    Args:
        ours, control: one speed per round, in round order; the two of a round were measured one
            after the other, so what slows the machine for a while slows both.

    Raises:
        ValueError: fewer than two rounds, or rounds of unequal number.
    """
    if len(ours) != len(control) or len(ours) < 2:
        raise ValueError(f"{len(ours)} and {len(control)} rounds: give at least 2, in pairs")
    ratios = np.asarray(ours, dtype=float) / np.asarray(control, dtype=float)  # [rounds]
    value = float(geometric_mean(ratios))
    if np.ptp(ratios) == 0.0:  # no spread: the bootstrap has nothing to resample
        return Interval(value, value, value)
    from scipy.stats import bootstrap  # a second of imports

    low, high = bootstrap(
        (ratios,), geometric_mean, confidence_level=0.95, rng=np.random.default_rng(seed)
    ).confidence_interval
    return Interval(value, float(low), float(high))


def repeated_share(tokens: Sequence[int], length: int = 8) -> float:
    """Share of the `length`-grams of `tokens` that occurred before in it; 0 if there are none."""
    grams = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
