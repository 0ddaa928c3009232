"""Counters of the worker: what was verified and accepted, and where a step's time went."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sglang_dspark.core.calibration_live import LiveCalibration
from sglang_dspark.engine.planner import FinishedStep, LaunchedStep

IDLE_S = 1.0  # between two decode steps this far apart the server had nothing to do


class StepMetrics:
    """Sums and counts since start or `clear`; ratios are for the reader to form.

    Outcomes reach the host with the scheduler's results, so reading them costs the step nothing.
    """

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self.clear()

    def clear(self) -> None:
        self._seconds = {"draft": 0.0, "verify": 0.0, "step": 0.0}
        self._reasons: Counter[str] = Counter()
        self._steps = self._no_draft_steps = 0
        self._requests = self._verified = self._accepted = 0
        self._drafted = self._rows = 0
        self._ceiling = self._ceiling_requests = 0
        self._accepted_histogram = np.zeros(self._gamma + 1, dtype=np.int64)
        self._draft_len_histogram = np.zeros(self._gamma + 1, dtype=np.int64)
        self._predicted_ms = self._actual_ms = 0.0
        self._priced_steps = 0
        self._last: LaunchedStep | None = None

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the host time of a part of the step; device work may still be queued after it."""
        start = time.perf_counter()
        yield
        self._seconds[part] += time.perf_counter() - start

    @property
    def seconds(self) -> dict[str, float]:
        """Host seconds of each part since start or `clear`; a copy."""
        return dict(self._seconds)

    def note_launch(self, step: LaunchedStep) -> None:
        """A decode step begins; the one before it lasted until now, the scheduler's share too."""
        step.started_s = time.perf_counter()
        self._steps += 1
        self._no_draft_steps += not step.plan.drafts
        self._reasons[step.plan.reason] += 1
        last, self._last = self._last, step
        if last is None or step.follows_prefill or last.batch.step != step.batch.step - 1:
            return
        elapsed_s = step.started_s - last.started_s
        if elapsed_s < IDLE_S and not np.isnan(last.plan.predicted_ms):
            self._priced_steps += 1
            self._predicted_ms += last.plan.predicted_ms
            self._actual_ms += elapsed_s * 1e3

    def note_finished(self, done: FinishedStep) -> None:
        """Outcome of a decode step; no-draft steps verify nothing and count their rows only."""
        self._rows += done.step.plan.num_rows
        if not done.step.plan.drafts:
            return
        self._requests += len(done.accepted)
        self._drafted += done.width * len(done.accepted)
        self._verified += int(done.draft_lens.sum())
        self._accepted += int(done.accepted.sum())
        self._accepted_histogram += np.bincount(done.accepted, minlength=self._gamma + 1)
        self._draft_len_histogram += np.bincount(done.draft_lens, minlength=self._gamma + 1)
        if done.ceiling is not None:
            self._ceiling += int(done.ceiling.sum())
            self._ceiling_requests += len(done.ceiling)

    def snapshot(self, live: LiveCalibration) -> dict[str, Any]:
        """Plain numbers for `/server_info`; see the README for what each one means."""
        overhead = self._seconds["step"] - self._seconds["draft"] - self._seconds["verify"]
        return {
            "steps": self._steps,
            "no_draft_steps": self._no_draft_steps,
            "step_reasons": dict(self._reasons),
            "verified_requests": self._requests,
            "drafted": self._drafted,
            "verified_drafts": self._verified,
            "accepted_drafts": self._accepted,
            "accepted_histogram": self._accepted_histogram.tolist(),
            "draft_len_histogram": self._draft_len_histogram.tolist(),
            "accept_length": _ratio(self._accepted, self._requests, plus=1.0),
            "ceiling_accept_length": _ratio(self._ceiling, self._ceiling_requests, plus=1.0),
            "ceiling_drafts": self._ceiling,
            "ceiling_requests": self._ceiling_requests,
            "trim_ratio": _ratio(self._drafted - self._verified, self._drafted),
            "planned_rows": self._rows,
            "predicted_step_ms": _ratio(self._predicted_ms, self._priced_steps),
            "actual_step_ms": _ratio(self._actual_ms, self._priced_steps),
            "priced_steps": self._priced_steps,
            "calibration_error": _plain(live.ece),
            "calibration_bias": _plain(live.bias),
            "step_seconds": self._seconds["step"],
            "draft_forward_seconds": self._seconds["draft"],
            "target_forward_seconds": self._seconds["verify"],
            "overhead_seconds": overhead,
        }


def _ratio(total: float, count: float, plus: float = 0.0) -> float | None:
    return plus + total / count if count else None


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
