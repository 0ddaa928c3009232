"""Algorithm 1 of the paper, literally: admit in descending survival, stop when Theta stops rising.

Synchronous: it reads the *current* step's survivals. It is lossless because it never looks past
the first candidate that does not pay, and on a staircase it stops at the first edge (paper.md).
The reference, and selectable; production uses `core/budget.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.budget import Choice


def algorithm_1(survival: npt.NDArray[np.floating], step_ms: npt.NDArray[np.float64]) -> Choice:
    """The budget and what it is expected to give.

    survival: [R, g] of this step; step_ms: [R g + 1] by budget.
    """
    num_requests, gamma = survival.shape
    candidates = sorted(
        (-float(survival[r, k]), k, r) for r in range(num_requests) for k in range(gamma)
    )
    budget, tau = 0, float(num_requests)
    theta = tau / step_ms[0]
    for negative, _, _ in candidates:
        raised = (tau - negative) / step_ms[budget + 1]
        if raised <= theta:
            break
        budget, tau, theta = budget + 1, tau - negative, raised
    return Choice(budget, tau, float(step_ms[budget]))
