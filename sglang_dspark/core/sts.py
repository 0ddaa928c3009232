"""Sequential Temperature Scaling: the fit (paper.md, "Calibration").

Left to right, each position takes the temperature that minimises the calibration error of the
cumulative product up to it against the accepted prefix; earlier ones stay as they were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.survival import confidences

F64 = npt.NDArray[np.float64]

BINS = 15  # equal width
# Smaller differences of ECE are chance: at 20,000 pairs that of a perfect predictor has a standard
# deviation of 0.0017.
# Deep positions that hardly any block reaches would else take any temperature at all.
SAME = 0.0005
GRID: tuple[float, ...] = tuple(np.geomspace(0.1, 10.0, 233).tolist())  # 2 % apart, 1 among them


def bin_of(survival: npt.NDArray[np.floating], bins: int = BINS) -> npt.NDArray[np.int64]:
    """Equal-width bin of every survival in 0..1; 1 itself falls into the last one."""
    return np.minimum((survival * bins).astype(np.int64), bins - 1)


def calibration_error(
    survival: npt.NDArray[np.floating], survived: npt.NDArray[np.bool_], bins: int = BINS
) -> float:
    """ECE 0..1: sum over bins of |sum of survivals - number that survived|, per pair.

    survival: [n] predicted; survived: [n] what happened. NaN without pairs.
    """
    if not len(survival):
        return float("nan")
    gap = np.bincount(bin_of(survival, bins), survival - survived.astype(np.float64), bins)
    return float(np.abs(gap).sum() / len(survival))


def fit_temperatures(
    logits: npt.ArrayLike,
    num_survived: npt.ArrayLike,
    *,
    grid: Sequence[float] = GRID,
    bins: int = BINS,
) -> tuple[float, ...]:
    """One temperature per position, [gamma].

    logits: [n, gamma] raw confidence logits of whole blocks; num_survived: [n] drafts that the
    target would have accepted of each. Of temperatures that do equally well (within `SAME`) the
    one nearest to 1 is taken.
    """
    raw = np.asarray(logits, dtype=np.float64)
    kept = np.asarray(num_survived)
    nearest_first = sorted(grid, key=lambda t: abs(np.log(t)))
    prefix: F64 = np.ones(len(raw))
    chosen: list[float] = []
    for k in range(raw.shape[1]):
        tried = [prefix * confidences(raw[:, k : k + 1], (t,))[:, 0] for t in nearest_first]
        errors = [calibration_error(survival, kept > k, bins) for survival in tried]
        best = next(i for i, error in enumerate(errors) if error <= min(errors) + SAME)
        chosen.append(nearest_first[best])
        prefix = tried[best]
    return tuple(chosen)
