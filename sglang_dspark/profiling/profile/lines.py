"""Lines of the worker's trace, and which of them are a step of the cell that was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_dspark.profiling.profile.cells import Cell

IN_FLIGHT = 2  # steps planned before a pin took effect may still be written after it
WARM_UPS = 2  # steps after a change that are not timed


class TraceError(ValueError):
    """The trace is not what our worker writes, or cannot tell how long a step took."""


class StepLine(NamedTuple):
    """One decode step as it was executed; times are the host's, in ms."""

    requests: int  # R
    context: int  # C
    width: int  # drafts per block; 0: none
    rows: int  # given to the target
    draft_ms: float
    target_ms: float
    worker_ms: float  # the whole step
    gap_ms: float | None  # the engine's time since the step before; None: a prefill lay between
    reference_ms: float | None = None  # a fixed product right after it; None: was not asked for

    @property
    def rest_ms(self) -> float:
        return max(0.0, self.worker_ms - self.draft_ms - self.target_ms)


class Executed(NamedTuple):
    """The steps of one hold that belong to a cell."""

    lines: tuple[StepLine, ...]  # warm-up dropped
    strangers: tuple[StepLine, ...]  # all requests were running, but another step was taken


def read_trace(text: str) -> list[StepLine]:
    """The steps of a trace.

    Raises:
        TraceError: a malformed line, or a step without times.
    """
    lines = []
    for number, raw in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(raw)
            if "step" in record:
                lines.append(_step(record))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise TraceError(f"trace line {number} is not our worker's: {error!r}") from None
    return lines


def _step(record: Mapping[str, Any]) -> StepLine:
    return StepLine(
        requests=len(record["slots"]),
        context=record["context_tokens"],
        width=record["width"],
        rows=record["rows"],
        draft_ms=record["draft_ms"],
        target_ms=record["target_ms"],
        worker_ms=record["worker_ms"],
        gap_ms=record["gap_ms"],
        reference_ms=record.get("reference_ms"),
    )


def executed(lines: Iterable[StepLine], cell: Cell) -> Executed:
    """The lines of a hold in which all of the cell's requests ran and its pin was obeyed."""
    obeyed: list[StepLine] = []
    strangers: list[StepLine] = []
    for line in lines:
        if line.requests == cell.requests:
            (obeyed if _obeys(line, cell) else strangers).append(line)
    return Executed(tuple(obeyed[WARM_UPS:]), tuple(strangers))


def _obeys(line: StepLine, cell: Cell) -> bool:
    if line.rows != cell.rows or (line.width > 0) != (cell.budget is not None):
        return False
    return cell.width is None or line.width == cell.width


def refusal(found: Sequence[Executed], cell: Cell) -> str | None:
    """Why the pin of a cell was not executed; None if it was."""
    if all(len(hold.strangers) <= IN_FLIGHT for hold in found):
        return None
    seen = sorted({(x.width, x.rows) for hold in found for x in hold.strangers})
    kinds = ", ".join(
        f"{rows} rows " + (f"of blocks of {w}" if w else "without drafts") for w, rows in seen
    )
    return (
        f"the pin was not executed: {cell.rows} rows were asked for, the target was given {kinds}"
    )


def check_clock(lines: Sequence[StepLine]) -> None:
    """Raises TraceError where a step's host time is not the time it takes.

    Our worker notes the engine's gap only where a forward has ended when its call returns.
    """
    if len(lines) > IN_FLIGHT and all(line.gap_ms is None for line in lines):
        raise TraceError(
            "on this server's device a forward is still running when the host has queued it, so "
            "the trace's times are no step times; a table can be profiled on a CPU server only"
        )
