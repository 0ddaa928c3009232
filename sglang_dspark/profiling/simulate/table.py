"""The cost table of a replay: read, made ready, and held against the recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sglang_dspark.core.cost_schema import parse_table
from sglang_dspark.core.cost_table import CostTable, CostTableError
from sglang_dspark.core.cost_verdict import IDENTITY
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.profiling.simulate.histories import Workload
from sglang_dspark.profiling.traces import Trace, TraceStep

WIDE_OF_THE_MARK = 0.2  # relative; a table this far from the recorded steps is worth a word


def read_table(path: Path) -> CostTable:
    """Any of the three schemas.

    Raises:
        CostTableError: unreadable or malformed.
    """
    try:
        return parse_table(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise CostTableError(str(path), f"cannot be read ({reason})") from None


def price_steps(
    table: CostTable, concurrency: int, workload: Workload, *, host_gap: bool
) -> tuple[StepCosts, HostTime]:
    """Prices of up to `concurrency` requests, and the engine's own time (or none)."""
    tiers = [entry.tier for entry in table.tiers]
    costs = StepCosts(table, max_requests=concurrency, gamma=workload.gamma, tiers=tiers)
    return costs, workload.host if host_gap else HostTime()


def table_notes(table: CostTable, traces: Sequence[Trace]) -> list[str]:
    """In what the table is not the one of the recorded server, and how far off it is there."""
    notes, server = [], traces[0].header.server
    if table.provenance is None:
        notes.append("the table does not say where it was measured")
    else:
        differing = [n for n in IDENTITY if getattr(table.provenance, n) != server.get(n)]
        if differing:
            notes.append(
                f"the table is of another server than the trace: {', '.join(differing)} differ"
            )
    ratio = priced_over_taken(table, traces)
    if abs(ratio - 1) > WIDE_OF_THE_MARK:
        notes.append(
            f"the table prices the recorded steps at {ratio:.2f} times what they took (median)"
        )
    return notes


def priced_over_taken(table: CostTable, traces: Sequence[Trace]) -> float:
    """Median over the recorded steps; NaN where none was timed."""
    gamma = max(trace.header.gamma for trace in traces)
    costs = StepCosts(table, max_requests=max(t.most_requests for t in traces), gamma=gamma)
    ratios = np.array(
        [
            _priced(step, costs) / step.worker_ms
            for trace in traces
            for step in trace.steps
            if step.worker_ms
        ]
    )
    known = ratios[~np.isnan(ratios)]
    return float(np.median(known)) if len(known) else float("nan")


def _priced(step: TraceStep, costs: StepCosts) -> float:
    """ms that the table gives for a recorded step; NaN for plain decode that it does not know."""
    n = len(step.slots)
    if not step.drafts:
        return costs.no_draft_ms(n, step.context_tokens)
    # Cap-accept judges by the window but runs every row.
    budget = n * step.width if step.ceiling is not None else sum(step.draft_lens)
    return float(costs.drafting_ms(n, step.context_tokens, step.width)[budget])
