"""Calibration error while serving, per draft position, in bounded memory.

Pairs (survival s_j, was the prefix 1..j accepted) of verified positions fall into equal-width
bins; ECE_j = sum over bins of |sum of s_j - number accepted| / pairs. A perfect head does not
show 0: with 15 bins about 2.7 % at 2,000 pairs, 0.9 % at 20,000 (paper.md, "Calibration").
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


class LiveCalibration:
    """[gamma, bins] sums. A position that reaches `window` pairs halves its sums, so that the
    error shown is that of recent traffic."""

    def __init__(self, gamma: int, bins: int = 15, window: int = 50_000) -> None:
        self._count = np.zeros((gamma, bins))
        self._predicted = np.zeros((gamma, bins))
        self._accepted = np.zeros((gamma, bins))
        self._window = window

    def add(
        self,
        survival: npt.NDArray[np.floating],
        draft_lens: npt.ArrayLike,
        accepted: npt.ArrayLike,
    ) -> None:
        """survival: [n, g]; draft_lens: [n], positions past it were never tried and do not count;
        accepted: [n], in cap-accept the uncapped number with draft_lens the whole block."""
        lens, kept = np.asarray(draft_lens), np.asarray(accepted)
        gamma, bins = self._count.shape
        steps = np.arange(survival.shape[1])
        tried = steps < lens[:, None]
        taken = (steps < kept[:, None])[tried]
        values = survival[tried].astype(np.float64)
        bin_of = np.minimum((values * bins).astype(np.int64), bins - 1)
        cell = np.broadcast_to(steps, tried.shape)[tried] * bins + bin_of
        for sums, weights in (
            (self._count, None),
            (self._predicted, values),
            (self._accepted, taken.astype(np.float64)),
        ):
            sums += np.bincount(cell, weights, gamma * bins).reshape(gamma, bins)
        full = self.pairs >= self._window
        for sums in (self._count, self._predicted, self._accepted):
            sums[full] *= 0.5

    @property
    def pairs(self) -> F64:
        """[gamma] pairs behind the error of each position."""
        total: F64 = self._count.sum(1)
        return total

    @property
    def ece(self) -> F64:
        """[gamma] expected calibration error 0..1 of the cumulative product; NaN without pairs."""
        gap = np.abs(self._predicted - self._accepted).sum(1)
        return self._per_pair(gap)

    @property
    def bias(self) -> F64:
        """[gamma] mean predicted minus observed acceptance; above 0 = over-confident; NaN empty."""
        gap = (self._predicted - self._accepted).sum(1)
        return self._per_pair(gap)

    def _per_pair(self, total: F64) -> F64:
        empty = np.full(len(total), np.nan)
        mean: F64 = np.divide(total, self.pairs, out=empty, where=self.pairs > 0)
        return mean

    def clear(self) -> None:
        for sums in (self._count, self._predicted, self._accepted):
            sums.fill(0.0)
