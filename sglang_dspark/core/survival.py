"""Confidence logits -> calibrated confidences -> survivals (paper.md, "Words" and "Calibration").

c_k = sigmoid(logit_k / T_k), s_j = c_1 ... c_j. What is not a number says nothing about a draft,
so NaN and both infinities count as confidence 0. The twin of `ops/survival.py`: confidences are
rounded once to float32 and multiplied left to right, so equal confidences give equal survivals
everywhere and rows never increase.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

_BITS_OF_ONE = 0x3F800000


def confidences(logits: npt.ArrayLike, temperatures: Sequence[float] | None = None) -> F32:
    """Raw confidence logits [bs, g] -> P(x_k accepted | earlier ones accepted) [bs, g].

    temperatures: one per trained position, at least g of them (STS); None = 1 everywhere.
    """
    raw = np.asarray(logits, dtype=np.float64)
    if temperatures is not None:
        raw = raw / np.asarray(temperatures[: raw.shape[1]], dtype=np.float64)
    finite = np.isfinite(raw)
    # Past +-700 float64 overflows; the float32 result has long been 0 or 1.
    bounded = np.clip(np.where(finite, raw, 0.0), -700.0, 700.0)
    return np.where(finite, 1.0 / (1.0 + np.exp(-bounded)), 0.0).astype(np.float32)


def survivals(confidence: npt.ArrayLike) -> F32:
    """Confidences [bs, g] -> s_j = c_1 ... c_j [bs, g] float32, rows never increase.

    NaN and infinities count as 0, other values are clipped to 0..1.
    """
    by_position = np.array(np.asarray(confidence).T, dtype=np.float32, order="C")
    # The bits of a float32 in 0..1 are at most those of 1.0; one look in place of three.
    if by_position.size and by_position.view(np.uint32).max() > _BITS_OF_ONE:
        by_position = _usable(by_position)
    for before, row in pairwise(by_position):
        np.multiply(row, before, out=row)
    return by_position.T


def _usable(values: F32) -> F32:
    """Any shape: NaN and infinities -> 0, the rest clipped to 0..1."""
    finite = np.where(np.isfinite(values), values, np.float32(0))
    return np.clip(finite, np.float32(0), np.float32(1))
