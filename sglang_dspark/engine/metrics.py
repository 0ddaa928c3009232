"""Counters of the worker: what was verified and accepted, and where a step's time went."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StepMetrics:
    """Sums and counts since start or `clear`; ratios are for the reader to form.

    Accepted counts reach the host with the scheduler's results, in step order, so reading them
    costs the step nothing.
    """

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._pending: deque[bool] = deque()  # of each unreported decode step: did it draft?
        self.clear()

    def clear(self) -> None:
        self._seconds = {"draft": 0.0, "verify": 0.0, "step": 0.0}
        self._steps = self._no_draft_steps = 0
        self._verified = self._accepted = 0
        self._accepted_histogram = [0] * (self._gamma + 1)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the host time of a part of the step; device work may still be queued after it."""
        start = time.perf_counter()
        yield
        self._seconds[part] += time.perf_counter() - start

    def note_step(self, drafted: bool) -> None:
        self._steps += 1
        self._no_draft_steps += not drafted
        self._pending.append(drafted)

    def note_accepted(self, accepted: list[int]) -> None:
        """Accepted drafts of each request of the oldest unreported step."""
        if not self._pending or not self._pending.popleft():
            return
        self._verified += len(accepted)
        self._accepted += sum(accepted)
        for count in accepted:
            self._accepted_histogram[count] += 1

    def snapshot(self) -> dict[str, Any]:
        """Plain numbers for `/server_info`."""
        accept_length = 1 + self._accepted / self._verified if self._verified else None
        overhead = self._seconds["step"] - self._seconds["draft"] - self._seconds["verify"]
        return {
            "steps": self._steps,
            "no_draft_steps": self._no_draft_steps,
            "verified_requests": self._verified,
            "accepted_drafts": self._accepted,
            "accepted_histogram": list(self._accepted_histogram),
            "accept_length": accept_length,
            "step_seconds": self._seconds["step"],
            "draft_forward_seconds": self._seconds["draft"],
            "target_forward_seconds": self._seconds["verify"],
            "overhead_seconds": overhead,
        }
