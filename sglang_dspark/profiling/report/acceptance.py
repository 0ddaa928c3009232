"""Conditional acceptance by draft position: P(draft k accepted | drafts before it accepted)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglang_dspark.profiling.report.estimate import Estimate, ratio_of_sums
from sglang_dspark.profiling.results import Results, Turn, WorkerRecord


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of one workload, over all its concurrencies."""

    workload: str
    arm: str
    by_position: tuple[Estimate | None, ...]  # [drafts]; None: no pair got that far
    pairs: int  # (request, step) pairs


def acceptance_by_position(results: Results) -> list[Acceptance]:
    """Of the arm with the widest windows that are never cut, per workload; none without one.

    Where windows are cut, the histograms do not tell how often position k was *tried*: a pair
    with k - 1 accepted may have been cut there or rejected there.
    """
    found = []
    for workload in results.workloads:
        arms = {
            arm: [t for t in results.turns if (t.workload, t.arm) == (workload, arm)]
            for arm in results.arms
        }
        widths = {arm: width for arm, turns in arms.items() if (width := _whole_window(turns))}
        if widths:
            arm = max(widths, key=lambda name: widths[name])
            found.append(_acceptance(workload, arm, arms[arm], widths[arm]))
    return found


def _whole_window(turns: Sequence[Turn]) -> int:
    """draft_len of every pair of these turns; 0 where it varies, or nothing was verified."""
    lens = {
        length
        for turn in turns
        if turn.worker is not None
        for length, pairs in enumerate(turn.worker.draft_len_histogram)
        if pairs
    }
    return lens.pop() if len(lens) == 1 else 0


def _acceptance(workload: str, arm: str, turns: Sequence[Turn], width: int) -> Acceptance:
    reached = defaultdict[tuple[int, int], np.ndarray](lambda: np.zeros(width + 1))
    for turn in turns:  # a round is the unit, over its concurrencies
        if turn.worker is not None:
            reached[turn.repeat, turn.round] += _at_least(turn.worker, width)
    table = np.stack([reached[key] for key in sorted(reached)])  # [rounds, width + 1]
    return Acceptance(
        workload,
        arm,
        tuple(ratio_of_sums(table[:, k], table[:, k - 1]) for k in range(1, width + 1)),
        int(table[:, 0].sum()),
    )


def _at_least(worker: WorkerRecord, width: int) -> np.ndarray:
    """[width + 1] pairs with at least so many drafts accepted."""
    exactly = np.asarray(worker.accepted_histogram[: width + 1], dtype=float)
    return exactly[::-1].cumsum()[::-1]
