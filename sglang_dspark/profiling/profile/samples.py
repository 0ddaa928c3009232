"""From timed steps to one number per cell: outliers out, medians, and how far repeats agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sglang_dspark.profiling.profile.cells import Cell
from sglang_dspark.profiling.profile.lines import StepLine

OUTLIER = 5.0  # deviations from the median, of a normal law of the same median deviation
NORMAL = 1.4826  # standard deviation of a normal law whose median absolute deviation is 1
RESAMPLES = 400
MIN_REPEATS = 3  # before an interval counts as tight: fewer cannot show how repeats differ

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell's medians over its repeats, in ms."""

    cell: Cell
    repeats: int
    samples: int  # steps that were kept
    rejected: int  # steps that were outliers
    context: int  # C that the steps had
    draft_ms: float
    target_ms: float
    rest_ms: float
    step_ms: float  # the worker's whole step; not the sum of the three medians
    gap_ms: float  # the engine's time between two steps, no part of the table; nan: never seen
    half_width_ms: float  # half of the 95 % interval of step_ms, from steps and repeats resampled

    @property
    def relative_half_width(self) -> float:
        return self.half_width_ms / self.step_ms

    def is_tight(self, tolerance: float) -> bool:
        """Whether another repeat would tell nothing new."""
        return self.repeats >= MIN_REPEATS and self.relative_half_width <= tolerance


def reject_outliers(lines: Sequence[StepLine]) -> list[StepLine]:
    """The steps of one repeat whose time is not far from their median."""
    step_ms = np.array([line.worker_ms for line in lines])
    distance = np.abs(step_ms - np.median(step_ms))
    # Steps that agree to the last digit must not make the next one an outlier.
    spread = max(NORMAL * float(np.median(distance)), 0.01 * float(np.median(step_ms)))
    return [line for line, d in zip(lines, distance, strict=True) if d <= OUTLIER * spread]


def measure(cell: Cell, repeats: Iterable[Sequence[StepLine]]) -> Measured:
    """A cell's numbers from the steps of each repeat that has any.

    Raises:
        ValueError: no repeat has one.
    """
    all_of = [lines for lines in repeats if lines]
    if not all_of:
        raise ValueError(f"{cell}: no step was measured")
    kept = [reject_outliers(lines) for lines in all_of]
    flat = [line for lines in kept for line in lines]
    gaps = [line.gap_ms for line in flat if line.gap_ms is not None]
    step_ms = [np.array([line.worker_ms for line in lines]) for lines in kept]
    return Measured(
        cell=cell,
        repeats=len(kept),
        samples=len(flat),
        rejected=sum(map(len, all_of)) - len(flat),
        context=round(float(np.median([line.context for line in flat]))),
        draft_ms=_middle([[line.draft_ms for line in lines] for lines in kept]),
        target_ms=_middle([[line.target_ms for line in lines] for lines in kept]),
        rest_ms=_middle([[line.rest_ms for line in lines] for lines in kept]),
        step_ms=_middle(step_ms),
        gap_ms=float(np.median(gaps)) if gaps else math.nan,
        half_width_ms=half_width(step_ms),
    )


def half_width(repeats: Sequence[F64]) -> float:
    """Half of the 95 % interval of the median of the repeats' medians.

    Both levels are resampled, the steps of each repeat and the repeats, because what slows the
    machine for a while moves all steps of a repeat together. One repeat cannot show that.
    """
    rng = np.random.default_rng(0)
    medians = np.stack(
        [np.median(rng.choice(steps, (RESAMPLES, len(steps))), axis=1) for steps in repeats], axis=1
    )  # [resamples, repeats]
    chosen = rng.integers(len(repeats), size=medians.shape)
    low, high = np.quantile(
        np.median(np.take_along_axis(medians, chosen, 1), axis=1), [0.025, 0.975]
    )
    return float(high - low) / 2


def _middle(repeats: Iterable[Sequence[float] | F64]) -> float:
    """The median of the repeats' medians: a repeat counts once, however many steps it has."""
    return float(np.median([np.median(steps) for steps in repeats]))
