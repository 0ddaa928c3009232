"""Which drafts fill the budget, on the device. Twin: `core/allocate.py`."""

from __future__ import annotations

import torch
from torch import Tensor


def allocate(survival: Tensor, budget: int) -> Tensor:
    """draft_len [bs] int64: the `budget` most likely drafts of the batch, always a prefix of each.

    survival: [bs, g] of this step, rows never increase and hold no NaN, rows in slot order; the
    budget is the host's. Exactly min(budget, bs x g) drafts are taken, so the host knows the
    number of rows. Ties: earlier position, then lower row.
    """
    num_requests, gamma = survival.shape
    if num_requests == 1:
        return torch.full((1,), min(max(budget, 0), gamma), device=survival.device)
    lens = torch.zeros(num_requests, dtype=torch.int64, device=survival.device)
    budget = min(budget, num_requests * gamma)
    if budget <= 0:
        return lens
    # Position-major, so that the stable sort breaks ties as the twin does.
    by_position = survival.T.flatten()
    winners = by_position.argsort(descending=True, stable=True)[:budget] % num_requests
    # bincount would read better, but on CUDA it asks the host for its output size.
    return lens.scatter_add_(0, winners, torch.ones_like(winners))
