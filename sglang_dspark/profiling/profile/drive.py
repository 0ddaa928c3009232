"""Measuring one group: a batch of R requests is kept running while its pins are walked through."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from sglang_dspark.profiling.profile.cells import Cell, Group
from sglang_dspark.profiling.profile.lines import (
    IN_FLIGHT,
    WARM_UPS,
    Executed,
    StepLine,
    check_clock,
    executed,
    refusal,
)
from sglang_dspark.profiling.profile.load import LoadError, RunningLoad
from sglang_dspark.profiling.profile.record import CellSteps, GroupSteps
from sglang_dspark.profiling.profile.servers import Reached

DRIFT = 1.25  # a batch with more context than this share of its group's is replaced
MAX_NEW_TOKENS = 1024  # per request; a batch is replaced before, or when it has ended
POOL_SHARE = 0.95  # of the KV pool that a batch may fill
START_S = 300.0  # for the prefill of a batch
POLL_S = 0.1
TRIES = 8  # holds per cell
SHORTEST_HOLD_S, LONGEST_HOLD_S = 0.05, 10.0
FIRST_GUESS_MS = 30.0


class Driver:
    """Measures groups on one server."""

    def __init__(self, server: Reached, steps: int, tick: Callable[[], None]) -> None:
        """steps: timed ones per cell; tick: called between holds."""
        self._server, self._steps, self._tick = server, steps, tick
        self._interval_ms: dict[Cell, float] = {}  # from step to step, as last seen

    def measure(self, group: Group, repeat: int) -> GroupSteps:
        """All cells of a group once, in its order; where the batch cannot run, the rest fail.

        Raises:
            RequestError: the server is gone or refuses a pin.
            TraceError: its trace cannot be read, or tells no times.
        """
        begun = time.monotonic()
        batch = _Batch(self._server, group)
        cells: list[CellSteps] = []
        try:
            for cell in group.cells:
                cells.append(self._measure_cell(batch, cell))
        except LoadError as error:
            rest = group.cells[len(cells) :]
            cells += [
                CellSteps(budget=c.budget, width=c.width, steps=[], failed=str(error)) for c in rest
            ]
        finally:
            batch.stop()
        return GroupSteps(
            repeat=repeat,
            requests=group.requests,
            context=group.context,
            seconds=round(time.monotonic() - begun, 3),
            cells=cells,
        )

    def _measure_cell(self, batch: _Batch, cell: Cell) -> CellSteps:
        holds: list[Executed] = []
        steps: list[StepLine] = []
        reason: str | None = None
        while len(steps) < self._steps and reason is None:
            lines = batch.hold(cell, self._hold_seconds(cell, self._steps - len(steps)))
            self._tick()
            holds.append(executed(lines, cell))
            steps += holds[-1].lines
            self._note_interval(cell, lines, bool(holds[-1].lines))
            reason = refusal(holds, cell)
            if reason is None and len(holds) >= TRIES and len(steps) < self._steps:
                reason = f"only {len(steps)} of {self._steps} steps were executed"
        return CellSteps(budget=cell.budget, width=cell.width, steps=steps, failed=reason)

    def _hold_seconds(self, cell: Cell, missing: int) -> float:
        """Long enough for the missing steps and those that do not count."""
        wanted = missing + WARM_UPS + IN_FLIGHT
        seconds = wanted * self._expected_ms(cell) / 1e3
        return min(max(seconds, SHORTEST_HOLD_S), LONGEST_HOLD_S)

    def _expected_ms(self, cell: Cell) -> float:
        known = self._interval_ms
        if cell in known or not known:
            return known.get(cell, FIRST_GUESS_MS)
        return statistics.median(known.values())

    def _note_interval(self, cell: Cell, lines: Sequence[StepLine], counted: bool) -> None:
        """From a hold's steps; where none of them counted, the next hold is longer still."""
        intervals = [line.worker_ms + (line.gap_ms or 0.0) for line in lines]
        seen = statistics.fmean(intervals) if intervals else 0.0
        self._interval_ms[cell] = seen if counted else max(seen, 2 * self._expected_ms(cell))


class _Batch:
    """The running requests of a group, replaced when they end or have grown too long."""

    def __init__(self, server: Reached, group: Group) -> None:
        self._server, self._group = server, group
        self._load: RunningLoad | None = None
        self._context = 0  # of the last step; 0: no hold yet

    def hold(self, cell: Cell, seconds: float) -> list[StepLine]:
        """The steps taken while a cell was pinned; some of them may be with fewer requests."""
        self._make_ready(cell)
        lines = self._server.pins.hold(cell, seconds)
        full = [line for line in lines if line.requests == self._group.requests]
        check_clock(full)
        if full:
            self._context = full[-1].context
        return lines

    def stop(self) -> None:
        load, self._load, self._context = self._load, None, 0
        if load is not None:
            load.stop()

    def _make_ready(self, cell: Cell) -> None:
        """Return with all requests of the group running."""
        grown = self._context > DRIFT * self._group.context
        if self._load is not None and self._load.is_running and not grown:
            return
        self.stop()
        group, server = self._group, self._server
        self._load = RunningLoad(
            server.url, group.requests, group.prompt_len, self._room(), server.vocabulary
        )
        self._wait(cell, self._load)

    def _wait(self, cell: Cell, load: RunningLoad) -> None:
        most, deadline = 0, time.monotonic() + START_S
        while time.monotonic() < deadline:
            lines = self._server.pins.hold(cell, POLL_S)
            most = max([most, *(line.requests for line in lines)])
            if lines and lines[-1].requests == self._group.requests:
                return
            if not load.is_running:
                break
        raise LoadError(
            f"{self._group.requests} requests with {self._group.context} context tokens never ran "
            f"together, at most {most} did; give a smaller --max-requests or smaller --contexts"
        )

    def _room(self) -> int:
        """New tokens per request."""
        limits, group = self._server.limits, self._group
        room = limits.context_len - group.prompt_len - 2 * (limits.gamma + 1)
        if limits.capacity is not None:
            pool = int(POOL_SHARE * limits.capacity) // group.requests
            room = min(room, pool - group.prompt_len)
        return max(1, min(room, MAX_NEW_TOKENS))
