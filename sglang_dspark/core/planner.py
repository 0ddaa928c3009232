"""The planners: one method, asked before a decode step is launched (paper.md, "The scheduler").

A mode is a class, chosen when the worker is built or told at run time; the relay, the feedback
and the cost table live outside and outlast a change of planner. Only `Searching` keeps state of
its own (whether it drafts at present); a change of table or limits needs a new planner.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.algorithm1 import algorithm_1
from sglang_dspark.core.arms import ArmRules, ArmState, decide_arm
from sglang_dspark.core.budget import (
    Choice,
    at_budget,
    search,
    tokens_of_scratch,
    with_least_gain,
)
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.feedback import AcceptanceFeedback
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.core.plan import NAN, Batch, Pin, Plan, Reason
from sglang_dspark.core.relay import ConfidenceRelay

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
    ) -> None:
        """host: adds the engine's own time between steps to every price."""
        self.relay, self.costs, self.feedback = relay, costs, feedback
        self._host = host or HostTime()

    def tokens(self, batch: Batch) -> tuple[F64, bool]:
        """([n + 1] expected tokens by budget, n = requests x gamma limit; whether that rests on
        any request's own confidences)."""
        lagged = self.relay.read(batch.step, batch.slots, batch.generations, batch.gamma)
        if self.feedback is not None:
            self.feedback.correct(lagged.survival)
        return tokens_of_scratch(lagged.survival), lagged.informed

    def drafting_ms(self, batch: Batch) -> F64:
        """[n + 1] ms by budget; all NaN without a table."""
        n = batch.num_requests
        if self.costs is None:
            return np.full(n * batch.gamma + 1, NAN)
        step_ms = self.costs.drafting_ms(n, batch.context_tokens, batch.gamma)
        step_ms += self._host.ms(n)
        return step_ms

    def no_draft_ms(self, batch: Batch) -> float:
        """ms of plain decode; NaN where it is not priced."""
        if self.costs is None:
            return NAN
        n = batch.num_requests
        return self.costs.no_draft_ms(n, batch.context_tokens) + self._host.ms(n)

    def num_rows(self, batch: Batch, budget: int) -> int:
        n = batch.num_requests
        return n + budget if self.costs is None else self.costs.num_rows(n, budget)

    def drafting(self, batch: Batch, budget: int, reason: Reason) -> Plan:
        """A plan for a budget that was not searched for; predictions where they can be made."""
        choice = at_budget(self.tokens(batch)[0], self.drafting_ms(batch), budget)
        rows = self.num_rows(batch, budget)
        return Plan(True, budget, rows, choice.ms, choice.tokens, reason)

    def plain(self, batch: Batch, reason: Reason) -> Plan:
        """A no-draft plan."""
        n = batch.num_requests
        return Plan(False, 0, n, self.no_draft_ms(batch), float(n), reason)


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


class Searching:
    """Production: global search over lagged survivals and, where it is priced, plain decode."""

    def __init__(
        self,
        outlook: Outlook,
        costs: StepCosts,
        *,
        arms: ArmRules | None = None,
        least_gain: float = 0.0,
    ) -> None:
        """arms: None never leaves drafting; least_gain: see `budget.with_least_gain`, 0 = off."""
        if arms is not None and not costs.prices_no_draft:
            raise ValueError("this cost table does not price a no-draft step: use arms=None")
        self._outlook, self._costs = outlook, costs
        self._arms, self._least_gain = arms, least_gain
        self.arm_state = ArmState()

    def plan(self, batch: Batch) -> Plan:
        n = batch.num_requests
        tau, informed = self._outlook.tokens(batch)
        step_ms = self._outlook.drafting_ms(batch)
        best, reason = self._best(tau, step_ms)
        if self._arms is not None:
            plain_ms = self._outlook.no_draft_ms(batch)
            arm = decide_arm(self.arm_state, self._arms, best, plain_ms, n, informed)
            self.arm_state = arm.state
            if not arm.drafts:
                return Plan(False, 0, n, plain_ms, float(n), "no-draft")
            if arm.reason == "probe":
                reason = "probe"
        return self._filled(batch, best, tau, reason)

    def _best(self, tau: F64, step_ms: F64) -> tuple[Choice, Reason]:
        best = search(tau, step_ms)
        if self._least_gain:
            full = at_budget(tau, step_ms, len(tau) - 1)
            kept = with_least_gain(best, full, self._least_gain)
            if kept is not best:
                return kept, "least-gain"
        return best, "search"

    def _filled(self, batch: Batch, best: Choice, tau: F64, reason: Reason) -> Plan:
        """Use the rows that a tier pays for anyway."""
        n = batch.num_requests
        num_rows = self._costs.num_rows(n, best.budget)
        budget = max(best.budget, min(num_rows - n, len(tau) - 1))
        return Plan(True, budget, num_rows, best.ms, float(tau[budget]), reason)


class Synchronous:
    """Algorithm 1 of the paper, on the current survivals; needs a host read inside the step.

    `plan` is asked before the draft as usual and leaves the budget open (0); `admit` sets it.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def plan(self, batch: Batch) -> Plan:
        n = batch.num_requests
        return Plan(True, 0, n, NAN, NAN, "algorithm-1")

    def admit(self, batch: Batch, survival: F32) -> Plan:
        """The plan of this step. survival: [bs, gamma limit], of the block just drafted."""
        n = batch.num_requests
        step_ms = self._costs.drafting_ms(n, batch.context_tokens, batch.gamma)
        choice = algorithm_1(survival, step_ms)
        rows = self._costs.num_rows(n, choice.budget)
        return Plan(True, choice.budget, rows, choice.ms, choice.tokens, "algorithm-1")
