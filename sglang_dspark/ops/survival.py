"""Confidence logits -> confidences -> survivals on the device. Twin: `core/survival.py`.

Confidences are computed in float64 and rounded once; survivals are multiplied left to right in
float32, since a library scan multiplies in its own order. So rows never increase, and host and
device rank the same survivals the same way.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def confidences(logits: Tensor, temperatures: Tensor | None = None) -> Tensor:
    """Raw logits [bs, g], any float type -> [bs, g] float32; NaN and infinities give 0.

    temperatures: [>= g], STS; None = 1 everywhere.
    """
    raw = logits.to(torch.float64)
    if temperatures is not None:
        raw = raw / temperatures[: raw.shape[1]]
    return torch.where(torch.isfinite(raw), raw.sigmoid(), 0.0).to(torch.float32)


def survivals(confidence: Tensor) -> Tensor:
    """Confidences [bs, g] -> s_j = c_1 ... c_j [bs, g] float32, rows never increase.

    NaN and infinities count as 0, other values are clipped to 0..1.
    """
    c = confidence.to(torch.float32)
    usable = (c >= 0) & (c < torch.inf)  # both false for NaN
    return _multiply_along(torch.where(usable, c.clamp(max=1.0), 0.0))


def survivals_of_logits(logits: Tensor, temperatures: Tensor | None = None) -> Tensor:
    """`survivals(confidences(...))` without looking again at what is within 0..1 already."""
    return _multiply_along(confidences(logits, temperatures))


def _multiply_along(confidence: Tensor) -> Tensor:
    """c_1 ... c_j of every row [bs, g], in place."""
    for before, now in pairwise(confidence.unbind(1)):
        now.mul_(before)
    return confidence
