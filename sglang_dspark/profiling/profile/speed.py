"""Taking the machine's own ups and downs out of the times.

Every timed step has a fixed product at its side (`engine/reference.py`). Where the product took a
tenth longer than it usually did in this profile, so did the step, and its times are divided by
that. What is left tells cells apart, and not the minutes in which they were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sglang_dspark.profiling.profile.lines import StepLine


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """How long the fixed product took over a profile, in ms; a visit of a cell counts once."""

    usual_ms: float  # median
    fast_ms: float  # 10th percentile
    slow_ms: float  # 90th percentile

    @classmethod
    def of(cls, visits: Iterable[Sequence[StepLine]]) -> MachineSpeed | None:
        """visits: the steps of one cell in one repeat, each. None where any step lacks it."""
        seen = [_reference_ms(lines) for lines in visits if lines]
        known = [ms for ms in seen if ms is not None]
        if not known or len(known) < len(seen):
            return None
        fast, usual, slow = np.quantile(known, [0.1, 0.5, 0.9])
        return cls(float(usual), float(fast), float(slow))

    def steady(self, lines: Sequence[StepLine]) -> list[StepLine]:
        """The steps of one visit as they would have been at the usual speed."""
        own_ms = _reference_ms(lines)
        assert own_ms is not None  # else there would be no usual speed
        factor = self.usual_ms / own_ms
        return [
            line._replace(
                draft_ms=factor * line.draft_ms,
                target_ms=factor * line.target_ms,
                worker_ms=factor * line.worker_ms,
                gap_ms=None if line.gap_ms is None else factor * line.gap_ms,
            )
            for line in lines
        ]


def _reference_ms(lines: Sequence[StepLine]) -> float | None:
    """The median of a visit: one product may meet a hiccup that no step met."""
    times = [line.reference_ms for line in lines]
    known = [ms for ms in times if ms is not None]
    return float(np.median(known)) if known and len(known) == len(times) else None
