"""From confidences to the plan of a step: holds what outlasts a step, asks `core` for decisions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.arms import ArmRules
from sglang_dspark.core.calibration_live import LiveCalibration
from sglang_dspark.core.feedback import AcceptanceFeedback
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.core.plan import NAN, Batch, Plan
from sglang_dspark.core.planner import (
    NeverDraft,
    Outlook,
    Pinned,
    Planner,
    Searching,
    SearchState,
    Synchronous,
    VerifyAll,
)
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.step_time import StepTime, kind_of
from sglang_dspark.core.widths import WidthRules
from sglang_dspark.engine.modes import MODES
from sglang_dspark.engine.steering import Steering
from sglang_dspark.seam.batch import I64, HostCopy

F32 = npt.NDArray[np.float32]


class Alternate:
    """`period` steps of one planner, then as many of the other."""

    def __init__(self, planners: tuple[Planner, Planner], period: int) -> None:
        self._planners, self._period = planners, period

    def plan(self, batch: Batch) -> Plan:
        return self._planners[batch.step // self._period % 2].plan(batch)


@dataclass(frozen=True, slots=True)
class Spent:
    """Host milliseconds of one step; device work may still be queued after them."""

    draft_ms: float  # the draft forward
    target_ms: float  # the target forward
    worker_ms: float  # the whole step


@dataclass(slots=True)
class LaunchedStep:
    """A decode step whose results the host has not seen yet."""

    plan: Plan
    batch: Batch
    table_ms: float = NAN  # the table's price of the plan, without what was learned since
    survival: HostCopy | None = None  # [bs, g]; of scheduled steps that drafted
    draft_lens: HostCopy | None = None  # [bs]; None: the whole block
    confidence_logits: HostCopy | None = None  # [bs, g] raw; only while a trace is written
    result: Any = None  # SGLang's result of the step; its tensors reach the host with it
    started_s: float = 0.0  # host clock
    follows_prefill: bool = False  # one ran since the decode step before
    gap_ms: float | None = None  # since the decode step before; None: a prefill lay between
    spent: Spent | None = None
    reference_ms: float | None = None  # a fixed product right after the step; if it was asked for


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A decode step with its outcome on the host."""

    step: LaunchedStep
    accepted: I64  # [bs] committed drafts

    @property
    def width(self) -> int:
        """Drafts proposed per request."""
        return self.step.plan.width

    @property
    def draft_lens(self) -> I64:
        """[bs] drafts verified (judged, in cap-accept)."""
        if self.step.draft_lens is None:
            return np.full_like(self.accepted, self.width)
        return self.step.draft_lens.numpy()

    @property
    def ceiling(self) -> I64 | None:
        """[bs] drafts that the whole block would have committed; known in cap-accept only."""
        lens = getattr(self.step.result, "block_accept_lens", None)
        return None if lens is None else lens.numpy().astype(np.int64) - 1


class StepPlanner:
    """Plans every decode step and learns from the finished ones.

    Lossless because of what it may see: the plan of step t is made before its draft, from
    confidences of step t - lag and earlier and from acceptances of finished steps (paper.md,
    "What keeps it lossless").
    """

    def __init__(
        self,
        gamma: int,
        num_slots: int,
        lag: int,
        steering: Steering,
        *,
        algorithm_1: bool = False,
    ) -> None:
        """algorithm_1: the paper's synchronous rule in place of the lagged search."""
        self._algorithm_1 = algorithm_1
        self.live = LiveCalibration(gamma)
        self._lag = lag
        self._relay = ConfidenceRelay(num_slots, gamma, lag)
        self._feedback = AcceptanceFeedback(gamma)
        self.host, self._taken = HostTime(), StepTime()
        self._step = -1
        self._prepared: LaunchedStep | None = None
        self._unpublished: deque[LaunchedStep] = deque()
        self._launched: deque[LaunchedStep] = deque()
        self._found: SearchState | None = None  # by earlier planners, at the table's prices
        self._take_up(steering)

    def steer(self, steering: Steering) -> None:
        """Take a new choice from the next step on; what was found at the same prices is kept."""
        if steering.table is not self.steering.table:
            self._found = None
        elif isinstance(self._planner, Searching):
            self._found = self._planner.state
        self._take_up(steering)

    def _take_up(self, steering: Steering) -> None:
        self.steering = steering
        self.costs = None if steering.table is None else steering.table.costs
        self._schedules = MODES[steering.mode].schedules
        self._planner = self._build(steering)

    def _build(self, steering: Steering) -> Planner:
        feedback = self._feedback if self._schedules else None
        outlook = Outlook(self._relay, self.costs, feedback, self.host, self._taken)
        self._outlook = outlook
        drafting = self._build_drafting(steering, outlook)
        match steering.no_draft.mode:
            case "on":
                return NeverDraft(outlook)
            case "alternate":
                return Alternate((drafting, NeverDraft(outlook)), steering.no_draft.period)
        return drafting

    def _build_drafting(self, steering: Steering, outlook: Outlook) -> Planner:
        if steering.pin is not None:
            return Pinned(outlook, steering.pin)
        if not self._schedules or self.costs is None:
            return VerifyAll(outlook)
        if self._algorithm_1:
            return Synchronous(self.costs)
        arms = ArmRules() if steering.no_draft.mode == "auto" else None
        # Where the whole block is verified all the same, nothing is saved by a narrower one.
        widths = WidthRules() if MODES[steering.mode].packs else None
        return Searching(outlook, self.costs, arms=arms, widths=widths, state=self._found)

    @property
    def prices_no_draft(self) -> bool:
        return self.costs is not None and self.costs.prices_no_draft

    def prepare(self, slots: I64, generations: I64, context_tokens: int) -> None:
        """Plan the coming step. Called once per decode step, before its forward."""
        self._step += 1
        while self._unpublished and self._unpublished[0].batch.step <= self._step - self._lag:
            self._publish(self._unpublished.popleft())
        batch = Batch(
            step=self._step,
            slots=slots,
            generations=generations,
            context_tokens=context_tokens,
            gamma=self.steering.gamma_limit,
        )
        plan = self._planner.plan(batch)
        # Now: what the plan's prediction was made of changes with every step that ends.
        self._prepared = LaunchedStep(plan, batch, self._outlook.table_ms(batch, plan))

    def take(self) -> LaunchedStep | None:
        """The step that was prepared, as it is launched; None when none was."""
        step, self._prepared = self._prepared, None
        if step is not None:
            self._launched.append(step)
        return step

    def admit(self, step: LaunchedStep, survival: F32) -> None:
        """Close a plan that was left open until the block of its step [bs, g] was drafted."""
        if step.plan.reason == "algorithm-1":
            assert isinstance(self._planner, Synchronous)
            step.plan = self._planner.admit(step.batch, survival)

    def note_time(self, step: LaunchedStep, worker_ms: float) -> None:
        """The step has ended; only where the host's time is the step's."""
        n, plan = step.batch.num_requests, step.plan
        kind = kind_of(n, plan.width, plan.budget)
        # Cap-accept plans windows, and has the target run all rows: that is no price of windows.
        if kind != "windows" or MODES[self.steering.mode].packs:
            self._taken.add(kind, n, worker_ms, step.table_ms)

    def note_confidence(
        self, step: LaunchedStep, survival: HostCopy, lens: HostCopy | None
    ) -> None:
        """The step drafted and scheduled; its survivals feed later plans."""
        step.survival, step.draft_lens = survival, lens
        self._unpublished.append(step)

    def note_finished(self, accepted: list[int]) -> FinishedStep | None:
        """Results of the oldest launched step: committed drafts per request."""
        if not self._launched:
            return None
        step = self._launched.popleft()
        done = FinishedStep(step, np.array(accepted, dtype=np.int64))
        if step.survival is None or not done.draft_lens.any():
            if self._schedules:
                self._feedback.idle(step.batch.num_requests)
            return done
        survival = step.survival.numpy()
        self._feedback.observe(survival, done.draft_lens, done.accepted)
        # Cap-accept has judged the whole block: every position tells about the confidences.
        tried = done.draft_lens if done.ceiling is None else np.full_like(done.accepted, done.width)
        self.live.add(survival, tried, done.accepted if done.ceiling is None else done.ceiling)
        return done

    def flush(self) -> None:
        """SGLang emptied its caches: no earlier confidence may be lent."""
        self._relay.flush(self._step)

    def _publish(self, step: LaunchedStep) -> None:
        assert step.survival is not None
        batch = step.batch
        self._relay.publish(batch.step, batch.slots, batch.generations, step.survival.numpy())
