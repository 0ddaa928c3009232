"""Drawing one token from a row of weights; the twin of `ops/draw.py`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def inverse_cdf(weights: Floats, uniform: float) -> int:
    """The first token whose cumulative weight exceeds uniform x total.

    weights: [V] >= 0, not necessarily normalised; uniform in (0, 1), at most 1 - 2^-53, so that
    uniform x total stays below the total. A token of weight 0 is never drawn; a row without any
    weight gives 0.
    """
    cdf = np.where(weights > 0, np.cumsum(weights, dtype=np.float64), -1.0)
    return int(np.argmax(cdf > uniform * cdf.max()))


def race(probs: Floats, exponentials: Floats) -> int:
    """argmax(p / E) over [V], a draw from p; ties go to the lowest id."""
    return int(np.argmax(probs / exponentials))
