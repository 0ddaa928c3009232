"""How many drafts to verify: the global search (paper.md, "The scheduler").

Maximise Theta(n) = tau(n) / T(n) over every budget n, tau(n) = R + the n best survivals. Real
cost curves are staircases with dips, so there is no early stop. Lossless only if the survivals
come from earlier steps; `core/relay.py` sees to that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


class Choice(NamedTuple):
    budget: int  # drafts, over the whole batch
    tokens: float  # expected committed tokens, next tokens included
    ms: float  # predicted step time

    @property
    def rate(self) -> float:
        """Expected tokens per ms."""
        return self.tokens / self.ms


def expected_tokens(survival: npt.NDArray[np.floating]) -> F64:
    """tau by budget [R g + 1]: R next tokens and the best n of survival [R, g]."""
    return tokens_of_scratch(survival.copy(order="K"))


def tokens_of_scratch(survival: npt.NDArray[np.floating]) -> F64:
    """`expected_tokens`, leaving `survival` in disorder; it must be contiguous."""
    best_last = survival.ravel(order="K")
    best_last.sort()
    tau = np.empty(best_last.size + 1)
    tau[0], tau[1:] = survival.shape[0], best_last[::-1]
    np.add.accumulate(tau, out=tau)
    return tau


def search(tau: F64, step_ms: F64) -> Choice:
    """The budget with the most expected tokens per ms; the smallest one where several tie.

    tau, step_ms: [n + 1] by budget.
    """
    budget = int((tau / step_ms).argmax())
    return at_budget(tau, step_ms, budget)


def at_budget(tau: F64, step_ms: F64, budget: int) -> Choice:
    """What `budget` drafts are expected to give and to cost."""
    return Choice(budget, float(tau[budget]), float(step_ms[budget]))


def with_least_gain(best: Choice, full: Choice, least_gain: float) -> Choice:
    """`best`, unless it beats verifying everything by less than `least_gain` (0.04 = 4 %).

    A small predicted gain is within a table's error; trimming for it can only lose.
    """
    return full if best.rate < full.rate * (1.0 + least_gain) else best
