"""A whole profile: server, repeats until the intervals are tight or the time is used, the fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from sglang_dspark.draft.checkpoint import CheckpointError
from sglang_dspark.profiling.client import RequestError
from sglang_dspark.profiling.profile.cells import (
    Cell,
    Group,
    Limits,
    Plan,
    PlanError,
    make_plan,
    order,
)
from sglang_dspark.profiling.profile.drive import Driver
from sglang_dspark.profiling.profile.fit import FitError, Fitted, fit_table
from sglang_dspark.profiling.profile.lines import TraceError
from sglang_dspark.profiling.profile.record import (
    GroupSteps,
    Header,
    Samples,
    SamplesError,
    SamplesFile,
    plan_record,
)
from sglang_dspark.profiling.profile.samples import MIN_REPEATS, Measured, measure
from sglang_dspark.profiling.profile.servers import Attached, AttachError, Own, Reached
from sglang_dspark.profiling.profile.speed import MachineSpeed
from sglang_dspark.profiling.provenance import machine, versions
from sglang_dspark.profiling.server import ServerError

FAILURES = (
    *(PlanError, SamplesError, CheckpointError, AttachError, FitError),
    *(ServerError, RequestError, TraceError),
)


class Progress(Protocol):
    """Who is told how far the profile is."""

    def stage(self, text: str) -> None:
        """A new stage has begun."""

    def tick(self) -> None:
        """Still waiting."""

    def repeat(self, number: int, groups: int, seconds: float) -> None:
        """A repeat of so many groups begins, after so many seconds of measuring."""

    def advance(self) -> None:
        """A group is over."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is profiled, how thoroughly, and where it is written."""

    source: Own | Attached
    contexts: Sequence[int]  # tokens of the whole batch
    max_requests: int | None  # of a batch; None: as many as the server runs
    steps: int  # per cell and repeat
    fine: bool  # more budgets
    minutes: float  # of measuring; the first repeat is always completed
    tolerance: float  # a cell is done when its relative half-width is no more
    out: Path  # a folder
    command: str

    @property
    def samples(self) -> Path:
        return self.out / "samples.jsonl"

    @property
    def results(self) -> tuple[Path, Path, Path]:
        """Table, figure, summary."""
        return self.out / "table.json", self.out / "figure.png", self.out / "summary.json"

    def plan(self, limits: Limits) -> Plan:
        """Raises PlanError where nothing fits."""
        if self.max_requests is not None:
            limits = replace(limits, max_requests=min(self.max_requests, limits.max_requests))
        return make_plan(limits, self.contexts, steps=self.steps, fine=self.fine)


@dataclass(frozen=True, slots=True)
class ProfileResult:
    plan: Plan
    samples: Samples
    measured: tuple[Measured, ...]
    failed: Mapping[Cell, str]  # cells without any step, and why
    fitted: Fitted


def run_profile(job: Job, progress: Progress, *, resume: bool) -> ProfileResult:
    """Measure, fit and check; a server that was started is stopped on every way out.

    Raises one of FAILURES; the text says why and what to change.
    """
    own = isinstance(job.source, Own)
    progress.stage("Starting the server (most of it is imports)" if own else "Attaching")
    with job.source.reach(progress.tick) as server:
        plan = job.plan(server.limits)
        file = SamplesFile(job.samples)
        header = _header(job, plan, server)
        samples = file.resume(header) if resume else Samples(header)
        if not resume:
            file.start(header)
        driver = Driver(server, job.steps, progress.tick)
        collect(job, plan, samples, driver.measure, file.append, progress)
        progress.stage("Stopping the server" if own else "Putting the server's settings back")
    progress.stage("Fitting")
    return conclude(plan, samples)


def _header(job: Job, plan: Plan, server: Reached) -> Header:
    return Header(
        plan=plan_record(plan),
        server=dict(server.identity),
        machine=dict(machine()),
        versions=versions(),
        command=job.command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def collect(
    job: Job,
    plan: Plan,
    samples: Samples,
    measure_group: Callable[[Group, int], GroupSteps],
    keep: Callable[[GroupSteps], None],
    progress: Progress,
) -> None:
    """Repeat the groups that are not tight yet until none is left or the time is used."""
    for repeat in count():
        todo = [g for g in order(plan.groups, repeat) if not samples.has(g, repeat)]
        if repeat >= MIN_REPEATS:
            speed = samples.speed
            todo = [g for g in todo if not is_done(samples, g, job.tolerance, speed)]
        if not todo and repeat >= max(samples.repeats, MIN_REPEATS):
            return
        for i, group in enumerate(todo):
            if repeat and samples.seconds + _last_seconds(samples, group) > 60 * job.minutes:
                return
            if i == 0:
                progress.repeat(repeat, len(todo), samples.seconds)
            done = measure_group(group, repeat)
            keep(done)
            samples.groups.append(done)
            progress.advance()


def is_done(samples: Samples, group: Group, tolerance: float, speed: MachineSpeed | None) -> bool:
    """Whether another repeat of the group would tell nothing new."""
    for cell in group.cells:
        repeats = samples.repeats_of(cell, speed)
        if repeats and not measure(cell, repeats).is_tight(tolerance):
            return False
    return True  # cells that failed in every repeat will fail again


def _last_seconds(samples: Samples, group: Group) -> float:
    key = (group.requests, group.context)
    return next(
        (g.seconds for g in reversed(samples.groups) if (g.requests, g.context) == key), 0.0
    )


def conclude(plan: Plan, samples: Samples) -> ProfileResult:
    """The table of what was measured. Raises FitError."""
    measured = tuple(_measured(plan, samples))
    done = {m.cell for m in measured}
    failed = {c: samples.failure(c) or "not reached" for c in plan.cells if c not in done}
    header: dict[str, Any] = {"server": samples.header.server, "command": samples.header.command}
    fitted = fit_table(measured, plan.held_out, date=samples.header.date, **header)
    return ProfileResult(plan, samples, measured, failed, fitted)


def _measured(plan: Plan, samples: Samples) -> Iterator[Measured]:
    speed = samples.speed
    for cell in plan.cells:
        if repeats := samples.repeats_of(cell, speed):
            yield measure(cell, repeats)
