"""From medians to a cost table, and how well it foretells the cells that it has not seen.

T(R, w, B, C) = draft(R, w) + verify(B, C) + rest(R, w). Draft and rest are the medians of what was
timed at R requests and blocks of w drafts. Verify is fitted to what remains of the whole step, not
to the target's forward alone: draft and rest grow a little with context as well, only verify has a
context axis, and the planner asks for sums. The three as they were timed are in the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sglang_dspark.core.cost_schema import at
from sglang_dspark.core.cost_table import BlockCost, CostTable, Provenance, Surface
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.profiling.profile.cells import Cell
from sglang_dspark.profiling.profile.samples import Measured
from sglang_dspark.profiling.profile.surface import fit_curve, fit_surface

LEAST_ERROR = 0.03  # a cell is not trusted further than this, however well its repeats agree
TARGET_ERROR = 0.05  # median over the held-out cells
TOLERATED_ERROR = 0.20  # of one held-out cell, or twice its own half-width where that is more


class FitError(RuntimeError):
    """Too few cells were measured for a table; the text says which are missing."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A measured cell beside its price."""

    measured: Measured
    held_out: bool
    predicted_ms: float

    @property
    def error(self) -> float:
        """Relative to the measured step; above 0: priced too high."""
        return self.predicted_ms / self.measured.step_ms - 1.0

    @property
    def tolerated(self) -> float:
        return max(TOLERATED_ERROR, 2.0 * self.measured.relative_half_width)

    @property
    def is_within(self) -> bool:
        return abs(self.error) <= self.tolerated


@dataclass(frozen=True, slots=True)
class Fitted:
    table: CostTable
    checks: tuple[Checked, ...]  # every measured cell

    @property
    def held_out(self) -> tuple[Checked, ...]:
        return tuple(c for c in self.checks if c.held_out)

    def median_error(self, held_out: bool, context: int | None = None) -> float:
        """Median relative error without its sign; nan where there is no such cell."""
        errors = [
            abs(c.error)
            for c in self.checks
            if c.held_out == held_out and context in (None, c.measured.cell.context)
        ]
        return float(np.median(errors)) if errors else float("nan")


def fit_table(
    measured: Sequence[Measured],
    held_out: Collection[Cell],
    *,
    server: Mapping[str, Any],
    date: str,
    command: str,
) -> Fitted:
    """The table of the cells that are not held out, checked against all.

    server: the fields of a provenance that name it.

    Raises:
        FitError: no drafting or no no-draft cell, fewer than two sizes or contexts.
    """
    seen = [m for m in measured if m.cell not in held_out]
    drafting = [m for m in seen if m.cell.budget is not None]
    plain = [m for m in seen if m.cell.budget is None]
    for what, cells in (("drafting", drafting), ("no-draft", plain)):
        if len({m.cell.context for m in cells}) < 2 or len({m.cell.rows for m in cells}) < 2:
            raise FitError(
                f"only {len(cells)} {what} cells were measured: two sizes and two contexts are "
                "needed; give more --minutes, or look at the failed cells"
            )
    table = _table(drafting, plain, server["gamma"])
    price = pricer(table, measured, server["gamma"])
    checks = tuple(Checked(m, m.cell in held_out, price(m.cell, m.context)) for m in measured)
    provenance = Provenance(
        kind="profiled",
        samples_per_point=min(m.samples for m in seen),
        date=date,
        command=command,
        residuals=_residuals(checks),
        **server,
    )
    return Fitted(replace(table, provenance=provenance), checks)


def _table(drafting: Sequence[Measured], plain: Sequence[Measured], gamma: int) -> CostTable:
    draft = _blocks(drafting, [m.draft_ms for m in drafting], gamma)
    rest = _blocks(drafting, [m.rest_ms for m in drafting], gamma)
    remaining = [m.step_ms - _at(draft, m.cell, gamma) - _at(rest, m.cell, gamma) for m in drafting]
    return CostTable(
        draft=draft,
        verify=_surface(drafting, remaining),
        rest=rest,
        no_draft=_surface(plain, [m.step_ms for m in plain]),
    )


def _blocks(cells: Sequence[Measured], ms: Sequence[float], gamma: int) -> BlockCost:
    """Medians by requests, for each width; a number of requests that a width was not measured at
    takes what lies between its neighbours."""
    found: dict[int, tuple[list[int], list[float]]] = {}
    for m, value in zip(cells, ms, strict=True):
        requests, values = found.setdefault(m.cell.width or gamma, ([], []))
        requests.append(m.cell.requests)
        values.append(value)
    curves = {width: fit_curve(*found[width]) for width in sorted(found)}
    counts = curves[max(curves)].at
    grid = np.array([[at(curve, r) for curve in curves.values()] for r in counts])
    grid = np.maximum.accumulate(grid, 1)  # a wider block never costs less
    return BlockCost(counts, tuple(curves), tuple(map(tuple, grid.tolist())))


def _at(blocks: BlockCost, cell: Cell, gamma: int) -> float:
    return blocks.ms[blocks.at.index(cell.requests)][blocks.widths.index(cell.width or gamma)]


def _surface(cells: Sequence[Measured], ms: Sequence[float]) -> Surface:
    return fit_surface(
        at=sorted({m.cell.rows for m in cells}),
        contexts=_contexts(cells),
        points=[(m.cell.rows, m.context) for m in cells],
        ms=ms,
        scale=[math.hypot(m.half_width_ms, LEAST_ERROR * m.step_ms) for m in cells],
    )


def _contexts(cells: Sequence[Measured]) -> list[int]:
    """The context that steps of each planned one really had, in the median."""
    planned = sorted({m.cell.context for m in cells})
    return [
        round(float(np.median([m.context for m in cells if m.cell.context == c]))) for c in planned
    ]


def pricer(
    table: CostTable, measured: Sequence[Measured], gamma: int
) -> Callable[[Cell, int], float]:
    """ms of a cell at a context, as the planner would price it."""
    most = max(m.cell.requests for m in measured)
    costs = StepCosts(table, max_requests=most, gamma=gamma)

    def price(cell: Cell, context: int) -> float:
        if cell.budget is None:
            return costs.no_draft_ms(cell.requests, context)
        return float(costs.drafting_ms(cell.requests, context, cell.width or gamma)[cell.budget])

    return price


def _residuals(checks: Sequence[Checked]) -> tuple[tuple[str, float], ...]:
    """Median relative error of what the planner asks for: whole steps, and those not fitted."""
    kinds = {
        "step": [c for c in checks if not c.held_out and c.measured.cell.budget is not None],
        "no_draft": [c for c in checks if not c.held_out and c.measured.cell.budget is None],
        "held_out": [c for c in checks if c.held_out],
    }
    return tuple(
        (name, round(float(np.median([abs(c.error) for c in cells])), 4))
        for name, cells in kinds.items()
        if cells
    )
