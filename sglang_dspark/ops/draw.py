"""Drawing one token per row. Twins in `core/draw.py`."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first token whose cumulative weight exceeds uniform x total.

    weights [..., V] >= 0, any float type, not necessarily normalised; uniforms [...] float64 in
    (0, 1), at most 1 - 2^-53. Returns [...] int64, always a token of positive weight; a row
    without any gives 0.
    """
    cdf = weights.cumsum(-1, dtype=torch.float64)
    # A parallel scan rounds each prefix its own way, so a token of weight 0 may still step up.
    cdf.masked_fill_(weights <= 0, -1.0)
    # uniform x total < total: 1 - 2^-53 times any float64 rounds to at most the next one below.
    mark = cdf.amax(-1, keepdim=True).mul_(uniforms.unsqueeze(-1))
    return (cdf > mark).view(torch.uint8).argmax(-1)


def race(probs: Tensor, exponentials: Tensor) -> Tensor:
    """argmax(p / E), which is argmax(log p + Gumbel noise): a draw from p that two laws can share.

    probs [..., V] float32; exponentials [..., V] float32 of `ops.noise.CoupledNoise`.
    Returns [...] int64; ties go to the lowest id, a token of probability 0 never wins.
    """
    return (probs / exponentials).argmax(-1)
