"""What a step costs outside the worker: the serving engine's own time between two steps.

A cost table is measured inside the worker. The engine's share (admission, results, streaming) is
the same whether a step drafts or not, so leaving it out makes drafting look dearer than it is.
"""

from __future__ import annotations


class HostTime:
    """Running mean of the gap between consecutive decode steps, in ms, by request count.

    Counts are kept in powers of two; a count not seen yet takes the nearest one's mean.
    """

    def __init__(self, keep: float = 0.95) -> None:
        """keep: share of the mean that survives one more gap."""
        self._keep = keep
        self._mean: dict[int, float] = {}

    def add(self, num_requests: int, gap_ms: float) -> None:
        """One gap behind a step of `num_requests` requests."""
        bucket = num_requests.bit_length()
        mean = self._mean.get(bucket)
        self._mean[bucket] = (
            gap_ms if mean is None else self._keep * mean + (1.0 - self._keep) * gap_ms
        )

    def ms(self, num_requests: int) -> float:
        """Expected gap; 0 before any was seen."""
        if not self._mean:
            return 0.0
        bucket = num_requests.bit_length()
        return self._mean[min(self._mean, key=lambda seen: (abs(seen - bucket), seen))]
