"""What a trace of the engine tells: a threshold in place of the scheduler, and times of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.survival import confidences, survivals
from sglang_dspark.profiling.traces import Trace, TraceStep

THRESHOLDS = tuple(round(0.1 * i, 1) for i in range(9))  # 0 .. 0.8, as in the paper's figure 5
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Threshold:
    """Every request verifies its longest prefix with survival >= threshold; drafts per pair."""

    threshold: float
    accepted: float  # per (request, step)
    rejected: float

    @property
    def accept_rate(self) -> float | None:
        verified = self.accepted + self.rejected
        return self.accepted / verified if verified else None


def threshold_sweep(
    trace: Trace,
    thresholds: Sequence[float] = THRESHOLDS,
    temperatures: tuple[float, ...] | None = None,
) -> tuple[list[Threshold], int]:
    """(numbers by threshold, (request, step) pairs they rest on).

    temperatures: of an STS fit, put on the raw confidences; None: survivals as the server had
    them. The outcome of drafts outside the window must be known, so only steps with a `ceiling`
    (cap-accept) count; ([], 0) where there is none.
    """
    told = [s for s in trace.steps if s.drafts and s.ceiling is not None and s.survival is not None]
    if not told:
        return [], 0
    ceiling = np.concatenate([np.asarray(s.ceiling) for s in told])  # [pairs]
    lens = np.concatenate([_prefixes(s, thresholds, temperatures) for s in told])
    accepted = np.minimum(lens, ceiling[:, None])  # [pairs, thresholds]
    rejected = lens - accepted
    return [
        Threshold(t, float(a), float(r))
        for t, a, r in zip(thresholds, accepted.mean(0), rejected.mean(0), strict=True)
    ], len(ceiling)


def _prefixes(
    step: TraceStep, thresholds: Sequence[float], temperatures: tuple[float, ...] | None
) -> I64:
    """[requests, thresholds] drafts before survival falls below the threshold."""
    survival = np.asarray(step.survival, dtype=float)  # [requests, width], falling
    if temperatures is not None and step.confidence_logits is not None:
        logits = np.asarray(step.confidence_logits, dtype=float)
        survival = survivals(confidences(logits, temperatures[: logits.shape[1]]))
    return np.asarray((survival[:, :, None] >= np.asarray(thresholds)).sum(axis=1))


def step_times(trace: Trace) -> F64:
    """[steps, 2] predicted and measured ms, of steps with both.

    A step lasts until the next one begins: its time in the worker and the gap after it. The last
    one before a prefill has no such end and does not count.
    """
    pairs = [
        (now.predicted_ms, now.worker_ms + after.gap_ms)
        for now, after in pairwise(trace.steps)
        if after.step == now.step + 1
        and now.predicted_ms is not None
        and now.worker_ms is not None
        and after.gap_ms is not None
    ]
    return np.array(pairs, dtype=float).reshape(-1, 2)
