"""What top-k, top-p and min-p keep, per sampling backend, one row at a time, in plain words.

The twin of `ops/filters.py`, which names the sources. Works on probabilities of any float type
in their own precision, since stock compares in float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def filter_pytorch(probs: Floats, top_k: int, top_p: float, min_p: float) -> Floats:
    """[V] -> [V] filtered, renormalised. Joint top-k and top-p, then min-p, ties by id."""
    order = np.argsort(-probs, kind="stable")
    ranked = probs[order]
    before = np.cumsum(ranked, dtype=probs.dtype) - ranked
    keep = np.arange(len(probs)) < top_k
    if top_p < 1.0:
        keep &= before <= probs.dtype.type(top_p)
    keep &= ranked >= ranked[0] * probs.dtype.type(min_p)
    kept = np.zeros_like(probs)
    kept[order[keep]] = ranked[keep]
    return _normalise(kept)


def filter_flashinfer(probs: Floats, top_k: int, top_p: float, min_p: float) -> Floats:
    """[V] -> [V] filtered, renormalised. All tokens tied with a kept one are kept.

    Without min-p a token stays if fewer than k tokens are likelier and together they hold less
    than top_p; with min-p top-k, top-p and min-p follow each other, renormalised in between.
    """
    if min_p <= 0.0:
        return _normalise(np.where(_top_k(probs, top_k) & _top_p(probs, top_p), probs, 0))
    probs = _normalise(np.where(_top_k(probs, top_k), probs, 0))
    probs = _normalise(np.where(_top_p(probs, top_p), probs, 0))
    return _normalise(np.where(probs >= probs.max() * probs.dtype.type(min_p), probs, 0))


def _top_k(probs: Floats, top_k: int) -> npt.NDArray[np.bool_]:
    return np.array([np.count_nonzero(probs > p) < top_k for p in probs])


def _top_p(probs: Floats, top_p: float) -> npt.NDArray[np.bool_]:
    if top_p >= 1.0:
        return np.ones(len(probs), dtype=np.bool_)
    return np.array([probs[probs > p].sum() < top_p for p in probs])


def _normalise(weights: Floats) -> Floats:
    normalised: Floats = weights / weights.sum()
    return normalised
