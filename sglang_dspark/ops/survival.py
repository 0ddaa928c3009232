"""Confidence logits -> confidences -> survivals on the device. Twin: `core/survival.py`.

Confidences are computed in float64 and rounded once; survivals are multiplied left to right in
float32, since a library scan multiplies in its own order. So rows never increase, and host and
device rank the same survivals the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor


def confidences(logits: Tensor, temperatures: Tensor | None = None) -> Tensor:
    """Raw logits [bs, g], any float type -> [bs, g] float32; NaN and infinities give 0.

    temperatures: [>= g], STS; None = 1 everywhere.
    """
    raw = logits.to(torch.float64)
    if temperatures is not None:
        raw = raw / temperatures[: raw.shape[1]]
    probs = 1.0 / (1.0 + torch.exp(-raw.clamp(-700.0, 700.0)))
    return torch.where(torch.isfinite(raw), probs, 0.0).to(torch.float32)


def survivals(confidence: Tensor) -> Tensor:
    """Confidences [bs, g] -> s_j = c_1 ... c_j [bs, g] float32, rows never increase.

    NaN and infinities count as 0, other values are clipped to 0..1.
    """
    c = confidence.to(torch.float32)
    usable = (c >= 0) & (c < torch.inf)  # both false for NaN
    survival = torch.where(usable, c.clamp(max=1.0), 0.0)
    for k in range(1, c.shape[1]):
        survival[:, k].mul_(survival[:, k - 1])
    return survival
