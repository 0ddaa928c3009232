"""The planners: one method, asked before a decode step is launched (paper.md, "The scheduler").

A mode is a class, chosen when the worker is built or told at run time; the relay, the feedback
and the cost table live outside and outlast a change of planner. Only `Searching` keeps state of
its own (whether it drafts at present, and how widely), which its successor may be given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.algorithm1 import algorithm_1
from sglang_dspark.core.arms import ArmRules, ArmState, decide_arm
from sglang_dspark.core.budget import (
    Choice,
    at_budget,
    expected_tokens,
    search,
    tokens_of_scratch,
    with_least_gain,
)
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.feedback import AcceptanceFeedback
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.core.plan import NAN, Batch, Pin, Plan, Reason
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.running import crowd_of, nearest_crowd
from sglang_dspark.core.step_time import StepTime, kind_of
from sglang_dspark.core.widths import WidthRules, WidthState

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Planner(Protocol):
    def plan(self, batch: Batch) -> Plan:
        """Called once per decode step, before its draft forward."""


class Outlook:
    """What drafting is expected to give, by budget, from confidences of earlier steps."""

    def __init__(
        self,
        relay: ConfidenceRelay,
        costs: StepCosts | None,
        feedback: AcceptanceFeedback | None = None,
        host: HostTime | None = None,
        taken: StepTime | None = None,
    ) -> None:
        """host: adds the engine's own time between steps to every price; taken: holds prices to
        the step times that were seen."""
        self.relay, self.costs, self.feedback = relay, costs, feedback
        self._host, self._taken = host or HostTime(), taken or StepTime()

    def survival(self, batch: Batch, width: int) -> tuple[F32, bool]:
        """([R, width] survivals as earlier steps foretell them; whether that rests on any
        request's own confidences)."""
        lagged = self.relay.read(batch.step, batch.slots, batch.generations, width)
        if self.feedback is not None:
            self.feedback.correct(lagged.survival)
        return lagged.survival, lagged.informed

    def drafting_ms(self, batch: Batch, width: int) -> F64:
        """[R x width + 1] ms by budget; all NaN without a table."""
        n = batch.num_requests
        if self.costs is None:
            return np.full(n * width + 1, NAN)
        step_ms = self.costs.drafting_ms(n, batch.context_tokens, width)
        whole_ms = step_ms[-1] * self._taken.factor("whole", n)
        step_ms *= self._taken.factor("windows", n)
        step_ms[-1] = whole_ms
        step_ms += self._host.ms(n)
        return step_ms

    def no_draft_ms(self, batch: Batch) -> float:
        """ms of plain decode; NaN where it is not priced."""
        if self.costs is None:
            return NAN
        n = batch.num_requests
        plain_ms = self.costs.no_draft_ms(n, batch.context_tokens)
        return plain_ms * self._taken.factor("plain", n) + self._host.ms(n)

    def table_ms(self, batch: Batch, plan: Plan) -> float:
        """What the table alone says of a plan's time in the worker; NaN where it says nothing."""
        n = batch.num_requests
        if self.costs is None or math.isnan(plan.predicted_ms):
            return NAN
        kind = kind_of(n, plan.width, plan.budget)
        return (plan.predicted_ms - self._host.ms(n)) / self._taken.factor(kind, n)

    def num_rows(self, batch: Batch, budget: int) -> int:
        n = batch.num_requests
        return n + budget if self.costs is None else self.costs.num_rows(n, budget)

    def drafting(self, batch: Batch, budget: int, reason: Reason) -> Plan:
        """A plan for a budget that was not searched for; predictions where they can be made."""
        tau = tokens_of_scratch(self.survival(batch, batch.gamma)[0])
        choice = at_budget(tau, self.drafting_ms(batch, batch.gamma), budget)
        rows = self.num_rows(batch, budget)
        return Plan(batch.gamma, budget, rows, choice.ms, choice.tokens, reason)

    def plain(self, batch: Batch, reason: Reason) -> Plan:
        """A no-draft plan."""
        n = batch.num_requests
        return Plan(0, 0, n, self.no_draft_ms(batch), float(n), reason)


class VerifyAll:
    """The whole block of every request: static, and compact without a cost table."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook

    def plan(self, batch: Batch) -> Plan:
        return self._outlook.drafting(batch, batch.num_requests * batch.gamma, "verify-all")


class Pinned:
    """A budget set by hand, honoured with or without a table."""

    def __init__(self, outlook: Outlook, pin: Pin) -> None:
        self._outlook, self._pin = outlook, pin

    def plan(self, batch: Batch) -> Plan:
        budget = self._pin.budget(batch.num_requests, batch.gamma)
        return self._outlook.drafting(batch, budget, "pinned")


class NeverDraft:
    """Plain decode, always."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook

    def plan(self, batch: Batch) -> Plan:
        return self._outlook.plain(batch, "never-draft")


class CrowdState(NamedTuple):
    """What a searching planner has found out about batches of about one size."""

    arm: ArmState = ArmState()
    widths: WidthState = WidthState()

    def lent(self) -> CrowdState:
        """To a size not met before: the beliefs, and no steps or time saved up for a probe."""
        return CrowdState(
            self.arm._replace(waited=0, credit_ms=0.0), self.widths._replace(credit_ms=0.0)
        )


# By request count, in powers of two: the few requests that a burst ends with are decided anew,
# and the next burst goes on where the last one stood. Never changed in place.
SearchState = Mapping[int, CrowdState]


class Searching:
    """Production: global search over lagged survivals, over the number of drafts to propose and,
    where it is priced, plain decode."""

    def __init__(
        self,
        outlook: Outlook,
        costs: StepCosts,
        *,
        arms: ArmRules | None = None,
        widths: WidthRules | None = None,
        least_gain: float = 0.0,
        state: SearchState | None = None,
    ) -> None:
        """arms: None never leaves drafting; widths: None proposes all drafts, always;
        least_gain: see `budget.with_least_gain`, 0 = off; state: a predecessor's."""
        if arms is not None and not costs.prices_no_draft:
            raise ValueError("this cost table does not price a no-draft step: use arms=None")
        self._outlook, self._costs = outlook, costs
        self._arms, self._widths, self._least_gain = arms, widths, least_gain
        self.state: SearchState = {} if state is None else state

    def _recall(self, num_requests: int) -> CrowdState:
        crowd = crowd_of(num_requests)
        if crowd in self.state:
            return self.state[crowd]
        if not self.state:
            return CrowdState()
        return self.state[nearest_crowd(self.state, num_requests)].lent()

    def _remember(self, num_requests: int, state: CrowdState) -> None:
        self.state = {**self.state, crowd_of(num_requests): state}

    def plan(self, batch: Batch) -> Plan:
        best, informed = self._compare(batch)
        if self._arms is not None:
            n, plain_ms = batch.num_requests, self._outlook.no_draft_ms(batch)
            probe, state = best.probe(n), self._recall(n)
            arm = decide_arm(
                state.arm, self._arms, best.choice, plain_ms, n, probe.choice.ms, informed
            )
            self._remember(n, state._replace(arm=arm.state))
            if not arm.drafts:
                return Plan(0, 0, n, plain_ms, float(n), "no-draft")
            if arm.reason == "probe":
                return self._filled(batch, probe)
        return self._filled(batch, self._look(batch, best))

    def _compare(self, batch: Batch) -> tuple[_Best, bool]:
        """(the best step of the present width, or of a better one; whether that rests on any
        request's own confidences)."""
        gamma, n = batch.gamma, batch.num_requests
        known, present, rival = self._recall(n), gamma, None
        if self._widths is not None:
            present = known.widths.width(gamma)
            rival = known.widths.rival(self._widths, gamma, batch.step, n)
        survival, informed = self._outlook.survival(batch, max(present, rival or 0))
        best = self._best(batch, survival, present)
        if self._widths is None or rival is None or not informed:
            return best, informed
        other = self._best(batch, survival, rival)
        gain = math.log(other.choice.rate / best.choice.rate)
        widths = known.widths.compared(self._widths, gamma, rival, gain, n)
        self._remember(n, known._replace(widths=widths))
        return (other if widths.width(gamma) == rival else best), informed

    def _look(self, batch: Batch, best: _Best) -> _Best:
        """`best`, or whole blocks where enough was saved up for that."""
        if self._widths is None or best.width == batch.gamma:
            return best
        n = batch.num_requests
        extra_ms = self._costs.once_ms(n, batch.gamma) - self._costs.once_ms(n, best.width)
        known = self._recall(n)
        looks, widths = known.widths.paid(self._widths, best.choice.ms, extra_ms)
        self._remember(n, known._replace(widths=widths))
        if not looks:
            return best
        survival, _ = self._outlook.survival(batch, batch.gamma)
        return self._best(batch, survival, batch.gamma)._replace(reason="look")

    def _best(self, batch: Batch, survival: F32, width: int) -> _Best:
        """The best budget for blocks of `width` drafts."""
        tau = expected_tokens(survival[:, :width])
        step_ms = self._outlook.drafting_ms(batch, width)
        best = search(tau, step_ms)
        if self._least_gain:
            full = at_budget(tau, step_ms, len(tau) - 1)
            kept = with_least_gain(best, full, self._least_gain)
            if kept is not best:
                return _Best(width, kept, tau, step_ms, "least-gain")
        return _Best(width, best, tau, step_ms, "search")

    def _filled(self, batch: Batch, best: _Best) -> Plan:
        """Use the rows that are paid for anyway."""
        width, choice, tau, step_ms, reason = best
        num_rows, budget = self._costs.fill(batch.num_requests, choice.budget, len(tau) - 1)
        return Plan(width, budget, num_rows, float(step_ms[budget]), float(tau[budget]), reason)


class _Best(NamedTuple):
    """A drafting step that might be taken."""

    width: int
    choice: Choice
    tau: F64  # [R x width + 1] expected tokens by budget
    step_ms: F64  # [R x width + 1] prices by budget
    reason: Reason

    def probe(self, num_requests: int) -> _Best:
        """The same, or with as many drafts verified as there are requests."""
        budget = max(self.choice.budget, num_requests)
        choice = at_budget(self.tau, self.step_ms, budget)
        return self._replace(choice=choice, reason="probe")


class Synchronous:
    """Algorithm 1 of the paper, on the current survivals; needs a host read inside the step.

    `plan` is asked before the draft as usual and leaves the budget open (0); `admit` sets it.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def plan(self, batch: Batch) -> Plan:
        n = batch.num_requests
        return Plan(batch.gamma, 0, n, NAN, NAN, "algorithm-1")

    def admit(self, batch: Batch, survival: F32) -> Plan:
        """The plan of this step. survival: [bs, gamma limit], of the block just drafted."""
        n = batch.num_requests
        step_ms = self._costs.drafting_ms(n, batch.context_tokens, batch.gamma)
        choice = algorithm_1(survival, step_ms)
        rows = self._costs.num_rows(n, choice.budget)
        return Plan(batch.gamma, choice.budget, rows, choice.ms, choice.tokens, "algorithm-1")
