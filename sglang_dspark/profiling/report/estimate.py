"""Numbers of several rounds with the interval that resampling whole rounds gives them.

A round is the unit: requests of one round share its moment, so they are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % interval; no interval where there is only one round."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Over the requests of all rounds."""

    p50: Estimate
    p95: Estimate
    p99: Estimate


def ratio_of_sums(
    over: npt.ArrayLike, under: npt.ArrayLike, *, plus: float = 0.0, scale: float = 1.0
) -> Estimate | None:
    """plus + scale * sum(over) / sum(under), one summand a round; None where `under` adds to 0."""
    a, b = np.asarray(over, dtype=float), np.asarray(under, dtype=float)  # [rounds]
    if b.sum() == 0:
        return None
    value = plus + scale * float(a.sum() / b.sum())
    if len(a) < 2:
        return Estimate(value)
    picks = _resampled_rounds(len(a))
    sums = b[picks].sum(axis=1)
    known = sums != 0  # a draw of nothing but empty rounds says nothing
    return _with_interval(value, plus + scale * a[picks].sum(axis=1)[known] / sums[known])


def percentiles(rounds: Sequence[Sequence[float]]) -> Percentiles | None:
    """p50, p95, p99 (linear between neighbours) of all values; None if there are none."""
    values = np.concatenate([np.asarray(r, dtype=float) for r in rounds] or [np.empty(0)])
    if not values.size:
        return None
    order = values.argsort(kind="stable")
    values = values[order]  # [values], rising
    owner = np.repeat(np.arange(len(rounds)), [len(r) for r in rounds])[order]
    whole = np.percentile(values, (50, 95, 99))
    if len(rounds) < 2:
        return Percentiles(*(Estimate(float(v)) for v in whole))
    seen = _times_picked(len(rounds))[:, owner].cumsum(axis=1)  # [RESAMPLES, values]
    seen = seen[seen[:, -1] > 0]
    return Percentiles(
        *(
            _with_interval(float(v), _quantile(values, seen, share))
            for v, share in zip(whole, (0.50, 0.95, 0.99), strict=True)
        )
    )


def _quantile(values: F64, seen: npt.NDArray[np.int64], share: float) -> F64:
    """Of every resample. values: [n], rising; seen: [resamples, n] picks up to each value."""
    place = share * (seen[:, -1] - 1)
    below = np.floor(place)
    low, high = (values[(seen > p[:, None]).argmax(axis=1)] for p in (below, np.ceil(place)))
    return np.asarray(low + (high - low) * (place - below))


def _with_interval(value: float, drawn: F64) -> Estimate:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Estimate(value, float(low), float(high))


@lru_cache(maxsize=32)
def _resampled_rounds(rounds: int) -> npt.NDArray[np.int64]:
    """[RESAMPLES, rounds] round numbers, the same for every statistic."""
    return np.random.default_rng(0).integers(rounds, size=(RESAMPLES, rounds))


@lru_cache(maxsize=32)
def _times_picked(rounds: int) -> npt.NDArray[np.int64]:
    """[RESAMPLES, rounds] how often each round is in each resample."""
    picks = _resampled_rounds(rounds)
    return np.asarray((picks[:, :, None] == np.arange(rounds)).sum(axis=1))
