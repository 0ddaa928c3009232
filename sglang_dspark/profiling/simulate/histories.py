"""Requests of a trace, each as the sequence of its blocks and what came of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.host_time import HostTime
from sglang_dspark.profiling.traces import Owner, Trace, TraceError, TraceStep

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

UNKNOWN = -1
LEAST_REQUESTS, PER_SLOT = 256, 8  # of a replay, unless told


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """One recorded request. b blocks, at least one."""

    survival: F32 | None  # [b, gamma] as the scheduler saw it; None: the trace has none
    num_survived: I64  # [b] drafts that the target would have accepted; UNKNOWN: cut off unseen
    start_context: int  # committed tokens before its first step
    tokens: int  # that its steps committed, 1 or more


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What is replayed."""

    histories: tuple[History, ...]
    gamma: int  # drafts per block in all of them
    lag: int
    host: HostTime  # the engine's own time between steps
    most_requests: int  # largest recorded batch
    dropped: int  # requests without a block, which cannot be replayed

    @property
    def has_confidences(self) -> bool:
        return all(h.survival is not None for h in self.histories)

    @property
    def unknown_share(self) -> float:
        """Of blocks: how far they would have survived was cut off unseen."""
        unknown = sum(int((h.num_survived == UNKNOWN).sum()) for h in self.histories)
        return unknown / sum(len(h.num_survived) for h in self.histories)

    def choose(self, concurrency: int, count: int | None = None, seed: int = 0) -> list[History]:
        """Requests of one replay: all in recorded order, else shuffled passes over all of them.

        count: None takes all up to 256, and 8 for every request at once at least.
        """
        recorded = len(self.histories)
        count = count or max(min(recorded, LEAST_REQUESTS), PER_SLOT * concurrency)
        if count == recorded:
            return list(self.histories)
        rng = np.random.default_rng(seed)
        passes = -(-count // recorded)
        order = np.concatenate([rng.permutation(recorded) for _ in range(passes)])
        return [self.histories[i] for i in order[:count]]


@dataclass(slots=True)
class _Growing:
    """A history while the trace is read."""

    start_context: int
    context: int
    survival: list[list[float]] = field(default_factory=list)
    num_survived: list[int] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)


def workload_of(traces: Sequence[Trace]) -> Workload:
    """All requests of the traces together.

    Raises:
        TraceError: no block was drafted.
    """
    widths = [step.width for trace in traces for step in trace.steps if step.drafts]
    if not widths:
        names = ", ".join(trace.name for trace in traces)
        raise TraceError(f"{names}: no step drafted, so there is nothing to replay")
    gamma, host = min(widths), HostTime()
    found = [history for trace in traces for history in _histories(trace, gamma)]
    for trace in traces:
        trace.learn_host_time(host)
    histories = tuple(h for h in found if h is not None)
    return Workload(
        histories=histories,
        gamma=gamma,
        lag=traces[0].header.lag,
        host=host,
        most_requests=max(trace.most_requests for trace in traces),
        dropped=len(found) - len(histories),
    )


def _histories(trace: Trace, gamma: int) -> Iterable[History | None]:
    """In the order of their first steps; None for a request without blocks."""
    growing: dict[Owner, _Growing] = {}
    for step in trace.steps:
        _join(growing, step)
        _add(growing, step, gamma)
    late = _late_steps(trace) if trace.header.lag > 1 else {}
    for owner, request in growing.items():
        yield _finished(request, late.get(owner, 0))


def _join(growing: dict[Owner, _Growing], step: TraceStep) -> None:
    """Start the requests that are new in this step.

    The trace knows the context of the batch only: what the others do not have is theirs, in
    equal parts.
    """
    new = [owner for owner in step.owners if owner not in growing]
    if not new:
        return
    held = sum(growing[owner].context for owner in step.owners if owner in growing)
    each = max((step.context_tokens - held) // len(new), 1)
    growing.update({owner: _Growing(each, each) for owner in new})


def _add(growing: dict[Owner, _Growing], step: TraceStep, gamma: int) -> None:
    for i, (owner, accepted, kept) in enumerate(
        zip(step.owners, step.accepted, step.num_survived, strict=True)
    ):
        request = growing[owner]
        request.commits.append(accepted + 1)
        request.context += accepted + 1
        if not step.drafts:
            continue
        request.num_survived.append(UNKNOWN if kept is None else min(kept, gamma))
        if step.survival is not None:
            request.survival.append(step.survival[i][:gamma])


def _late_steps(trace: Trace) -> dict[Owner, int]:
    """Requests whose last step came after their end: overlap launches one before it knows.

    Seen by others of the same batch going on; when all end together no step is launched. Nor is
    one when a single token was left to an answer of limited length, which the trace does not say:
    of those one token too few is counted.
    """
    last: dict[Owner, int] = {}
    for number, step in enumerate(trace.steps):
        last.update(dict.fromkeys(step.owners, number))
    leaving: dict[int, list[Owner]] = defaultdict(list)
    for owner, number in last.items():
        leaving[number].append(owner)
    late: dict[Owner, int] = {}
    for number, owners in leaving.items():
        if number + 1 < len(trace.steps) and len(owners) < len(trace.steps[number].slots):
            late.update(dict.fromkeys(owners, 1))
    return late


def _finished(request: _Growing, late_steps: int) -> History | None:
    """late_steps: last steps that committed nothing of use."""
    tokens = sum(request.commits[: len(request.commits) - late_steps])
    if not request.num_survived or tokens < 1:
        return None
    complete = len(request.survival) == len(request.num_survived)
    return History(
        survival=np.array(request.survival, dtype=np.float32) if complete else None,
        num_survived=np.array(request.num_survived, dtype=np.int64),
        start_context=request.start_context,
        tokens=tokens,
    )
