"""What steps take beside what the cost table said: one factor per arm on its prices.

A table is measured once, on batches of one kind; windows of unequal length, other contexts or a
busy machine shift all prices of an arm together. The choice between drafting and plain decode
compares two such prices, so both are held to the times that were seen. Only step times enter,
never tokens, and only those of steps that have ended: what is planned stays causal.
"""

from __future__ import annotations

import math

from sglang_dspark.core.running import MeanByRequests

MOST = math.log(2.0)  # an hour glass is not a step time: one step counts as at most twice its price


class StepTime:
    """Running mean of log(taken / priced) of drafting and of plain steps, by request count."""

    def __init__(self, keep: float = 0.97) -> None:
        """keep: share of the mean that survives one more step; it starts from a factor of 1."""
        self._drafting, self._plain = (MeanByRequests(keep, first=0.0) for _ in range(2))

    def add(self, num_requests: int, drafts: bool, taken_ms: float, table_ms: float) -> None:
        """One step. table_ms: its price in the table; NaN: it has none, and nothing is learned."""
        if not (table_ms > 0 and taken_ms > 0):
            return
        error = math.log(taken_ms / table_ms)
        mean = self._drafting if drafts else self._plain
        mean.add(num_requests, min(max(error, -MOST), MOST))

    def factor(self, num_requests: int, drafts: bool) -> float:
        """To multiply the table's price with."""
        return math.exp((self._drafting if drafts else self._plain).at(num_requests, 0.0))
