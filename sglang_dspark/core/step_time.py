"""What steps take beside what the cost table said: one factor per kind of step on its prices.

A table is measured once, on batches of one sort; windows of unequal length, other contexts or a
busy machine shift all prices of a kind together. Drafting or not, whole blocks or windows: each
choice compares the prices of two kinds, so all are held to the times that were seen. Only step
times enter, never tokens, and only those of steps that have ended: what is planned stays causal.
"""

from __future__ import annotations

import math
from typing import Literal

from sglang_dspark.core.running import MeanByRequests

Kind = Literal["plain", "whole", "windows"]

FORGET = 0.002  # of what tells one drafting kind from the other, with each step of the other
MOST = math.log(2.0)  # one step counts as at most twice its price: a pause is not a step time


def kind_of(num_requests: int, width: int, budget: int) -> Kind:
    """plain: no drafts; whole: every draft is verified; windows: rows are packed."""
    if width == 0:
        return "plain"
    return "whole" if budget == num_requests * width else "windows"


class StepTime:
    """Running means of log(taken / priced), by kind of step and request count."""

    def __init__(self, keep: float = 0.97) -> None:
        """keep: share of a mean that survives one more step; it starts from a factor of 1."""
        self._means: dict[Kind, MeanByRequests] = {
            kind: MeanByRequests(keep, first=0.0) for kind in ("plain", "whole", "windows")
        }

    def add(self, kind: Kind, num_requests: int, taken_ms: float, table_ms: float) -> None:
        """One step. table_ms: its price in the table; NaN: it has none, and nothing is learned."""
        if not (table_ms > 0 and taken_ms > 0):
            return
        error = math.log(taken_ms / table_ms)
        self._means[kind].add(num_requests, min(max(error, -MOST), MOST))
        # A kind that was dear in a bad moment is tried again one day.
        if kind != "plain":
            other = self._means["windows" if kind == "whole" else "whole"]
            other.approach(num_requests, self._means[kind].at(num_requests, 0.0), FORGET)

    def factor(self, kind: Kind, num_requests: int) -> float:
        """To multiply the table's price with."""
        return math.exp(self._means[kind].at(num_requests, 0.0))
