"""Running means that stand in where a request has no confidences of its own.

Both are made of finished steps only, so what they say about a coming block is causal.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# Before anything was seen: each draft is taken with 0.7 given the one before. Four rows' worth.
FIRST_GUESS, GUESS_ROWS = 0.7, 4.0
LEAST = 1e-6  # a survival that may be divided by
INERTIA = 15.0  # request-steps of the past that a step of n requests is weighed against


def first_guess(gamma: int) -> F64:
    """[gamma] survivals that a server starts from."""
    return np.power(FIRST_GUESS, np.arange(1, gamma + 1, dtype=np.float64))


class SurvivalPrior:
    """Mean first-step survival per position, over about the last `window` new requests."""

    def __init__(self, gamma: int, window: int = 256) -> None:
        self._mean = first_guess(gamma)
        self._rows, self._window = GUESS_ROWS, float(window)

    @property
    def curve(self) -> F64:
        """[gamma] survival of a request that has not drafted yet; never increasing."""
        return self._mean

    def add(self, survival: npt.NDArray[np.floating]) -> None:
        """survival: [n, g], first blocks of n requests; positions past g keep their mean given
        position g."""
        n, gamma = survival.shape
        if n == 0:
            return
        self._rows = min(self._rows + n, self._window)
        weight = min(n / self._rows, 1.0)
        new = self._mean[:gamma] + weight * (
            survival.mean(0, dtype=np.float64) - self._mean[:gamma]
        )
        _replace_head(self._mean, new)
        np.minimum.accumulate(self._mean, out=self._mean)


class TypicalSurvival:
    """Mean survival per position lately, over about the last 16 request-steps.

    Steps without drafts fade it as well, so the first block after a pause counts more; but a
    single row never counts for more than a third.
    """

    def __init__(self, gamma: int) -> None:
        self._mean = first_guess(gamma)
        self._rows = GUESS_ROWS
        self._last_step: int | None = None

    @property
    def curve(self) -> F64:
        """[gamma] survival of a request whose last step did not draft; never increasing."""
        curve: F64 = np.minimum.accumulate(self._mean)
        return curve

    def add(self, step: int, survival: F32) -> None:
        """survival: [n, g] of everything drafted in `step`, n > 0; positions past g keep theirs
        given position g."""
        n, gamma = survival.shape
        elapsed = 1 if self._last_step is None else max(step - self._last_step, 1)
        kept = max((self._rows / (self._rows + n)) ** elapsed, 2.0 / (2.0 + n))
        self._rows = min(self._rows + n, INERTIA)
        self._last_step = step
        # A product with ones adds up columns five times faster than `mean(0)`.
        new = self._mean[:gamma] * kept + np.ones(n, np.float32) @ survival * ((1.0 - kept) / n)
        _replace_head(self._mean, new)


class MeanByRequests:
    """Running mean by request count, kept in powers of two; the nearest one stands in."""

    def __init__(self, keep: float, first: float | None = None) -> None:
        """keep: share of a mean that survives one more value; first: what they start from, a
        later one from its nearest; None = each from its own first value."""
        self._keep, self._first = keep, first
        self._mean: dict[int, float] = {}

    def add(self, num_requests: int, value: float) -> None:
        crowd = crowd_of(num_requests)
        mean = self._mean.get(crowd)
        if mean is None and self._first is not None:
            mean = self.at(num_requests, self._first)
        self._mean[crowd] = value if mean is None else mean + (1.0 - self._keep) * (value - mean)

    def fade(self, num_requests: int, share: float) -> None:
        """Take `share` of a mean away."""
        crowd = crowd_of(num_requests)
        if crowd in self._mean:
            self._mean[crowd] *= 1.0 - share

    def at(self, num_requests: int, unseen: float) -> float:
        """The mean at a count; `unseen` before there is any."""
        if not self._mean:
            return unseen
        return self._mean[nearest_crowd(self._mean, num_requests)]


def crowd_of(num_requests: int) -> int:
    """Request counts by powers of two: 1, 2-3, 4-7, ..."""
    return num_requests.bit_length()


def nearest_crowd(seen: Iterable[int], num_requests: int) -> int:
    """Of those seen, at least one; the smaller of two equally near ones."""
    crowd = crowd_of(num_requests)
    return min(seen, key=lambda other: (abs(other - crowd), other))


def _replace_head(mean: F64, head: F64) -> None:
    """Set the first g of a survival curve [gamma]; what follows keeps its share of position g."""
    g = len(head)
    if g < len(mean):
        mean[g:] *= head[-1] / max(mean[g - 1], LEAST)
        np.minimum(mean[g:], head[-1], out=mean[g:])
    mean[:g] = head
