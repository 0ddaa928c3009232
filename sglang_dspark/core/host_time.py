"""What a step costs outside the worker: the serving engine's own time between two steps.

A cost table is measured inside the worker. The engine's share (admission, results, streaming) is
the same whether a step drafts or not, so leaving it out makes drafting look dearer than it is.
"""

from __future__ import annotations

from sglang_dspark.core.running import MeanByRequests


class HostTime:
    """Running mean of the gap between consecutive decode steps, in ms, by request count."""

    def __init__(self, keep: float = 0.95) -> None:
        """keep: share of the mean that survives one more gap."""
        self._mean = MeanByRequests(keep)

    def add(self, num_requests: int, gap_ms: float) -> None:
        """One gap behind a step of `num_requests` requests."""
        self._mean.add(num_requests, gap_ms)

    def ms(self, num_requests: int) -> float:
        """Expected gap; 0 before any was seen."""
        return self._mean.at(num_requests, 0.0)
