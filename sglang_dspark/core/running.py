"""Running means that stand in where a request has no confidences of its own.

Both are made of finished steps only, so what they say about a coming block is causal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# Before anything was seen: each draft is taken with 0.7 given the one before. Four rows' worth.
FIRST_GUESS, GUESS_ROWS = 0.7, 4.0
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
        """survival: [n, g], first blocks of n requests; positions past g keep their mean."""
        n, gamma = survival.shape
        if n == 0:
            return
        self._rows = min(self._rows + n, self._window)
        weight = min(n / self._rows, 1.0)
        self._mean[:gamma] += weight * (survival.mean(0, dtype=np.float64) - self._mean[:gamma])
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
        """survival: [n, g] of everything drafted in `step`, n > 0; positions past g keep theirs."""
        n, gamma = survival.shape
        elapsed = 1 if self._last_step is None else max(step - self._last_step, 1)
        kept = max((self._rows / (self._rows + n)) ** elapsed, 2.0 / (2.0 + n))
        self._rows = min(self._rows + n, INERTIA)
        self._last_step = step
        mean = self._mean[:gamma]
        mean *= kept
        # A product with ones adds up columns five times faster than `mean(0)`.
        mean += np.ones(n, dtype=np.float32) @ survival * ((1.0 - kept) / n)
