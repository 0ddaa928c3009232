"""Which drafts fill the budget: the best current survivals (paper.md, "The scheduler").

The twin of `ops/allocate.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def allocate(survival: npt.NDArray[np.floating], budget: int) -> npt.NDArray[np.int64]:
    """draft_len per request [bs]: the `budget` most likely drafts of the batch.

    survival: [bs, g], rows never increase, so that what is taken of a row is a prefix; rows in
    slot order. Ties: earlier position, then lower row; token values never matter. Exactly
    min(budget, bs x g) drafts are taken, those of survival 0 last: the host knows the number of
    rows without asking the device, and a pinned budget is honoured whatever the head says.
    """
    num_requests, gamma = survival.shape
    candidates = sorted(
        (-float(survival[r, k]), k, r) for r in range(num_requests) for k in range(gamma)
    )
    lens = np.zeros(num_requests, dtype=np.int64)
    for _, _, r in candidates[: max(budget, 0)]:
        lens[r] += 1
    return lens
