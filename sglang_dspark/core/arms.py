"""Draft or not in the next step: hysteresis, and probes that stay within 2 %.

Without drafts nothing is learned about drafts, so now and then a step drafts all the same. Such
a probe comes after at least `first_wait` steps, twice as many after each one in vain, and only
when `probe_share` of the predicted time spent without drafts has paid for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sglang_dspark.core.budget import Choice


@dataclass(frozen=True, slots=True)
class ArmRules:
    margin: float = 0.02  # relative gain in tokens per ms that a switch must promise
    patience: int = 3  # steps in a row that must promise it
    probe_share: float = 0.02  # of steps, and of the time spent without drafts
    first_wait: int = 50  # steps without drafts before a probe; >= 1 / probe_share - 1
    longest_wait: int = 1600

    def __post_init__(self) -> None:
        if self.margin < 0 or self.patience < 1 or not 0 <= self.probe_share < 1:
            raise ValueError(f"{self}: margin >= 0, patience >= 1, probe_share in 0..1")
        if (self.first_wait + 1) * self.probe_share < 1 or self.longest_wait < self.first_wait:
            raise ValueError(
                f"first_wait {self.first_wait} probes more than {self.probe_share:.0%} of steps, "
                f"or exceeds longest_wait {self.longest_wait}"
            )


class ArmState(NamedTuple):
    drafting: bool = True
    streak: int = 0  # steps in a row in which the other arm looked better
    spell: int = 0  # steps since the last switch
    waited: int = 0  # steps without drafts since the last probe
    wait: int = 0  # steps to wait before the next one
    credit_ms: float = 0.0  # saved up for a probe


class ArmDecision(NamedTuple):
    drafts: bool
    reason: str  # draft | no-draft | probe
    state: ArmState  # for the next step


def decide_arm(
    state: ArmState, rules: ArmRules, draft: Choice, no_draft_ms: float, num_requests: int
) -> ArmDecision:
    """One step's arm. draft: the best drafting step; no_draft_ms: what plain decode would take."""
    plain_rate = num_requests / no_draft_ms
    here, there = (draft.rate, plain_rate) if state.drafting else (plain_rate, draft.rate)
    streak = state.streak + 1 if there > here * (1.0 + rules.margin) else 0
    if streak >= rules.patience:
        return _switch(state, rules)
    state = state._replace(streak=streak, spell=state.spell + 1)
    if state.drafting:
        return ArmDecision(True, "draft", state)
    return _wait_or_probe(state, rules, draft.ms, no_draft_ms)


def _switch(state: ArmState, rules: ArmRules) -> ArmDecision:
    if not state.drafting:
        return ArmDecision(True, "draft", ArmState(drafting=True, wait=state.wait))
    # A short spell of drafting was a false alarm: go on backing off where the last one ended.
    lasted = state.spell >= rules.first_wait or state.wait == 0
    wait = rules.first_wait if lasted else state.wait
    return ArmDecision(False, "no-draft", ArmState(drafting=False, waited=1, wait=wait))


def _wait_or_probe(
    state: ArmState, rules: ArmRules, probe_ms: float, no_draft_ms: float
) -> ArmDecision:
    extra_ms = max(probe_ms - no_draft_ms, 0.0)
    if state.waited >= state.wait and state.credit_ms >= extra_ms:
        wait = min(2 * state.wait, rules.longest_wait)
        after = state._replace(waited=0, wait=wait, credit_ms=state.credit_ms - extra_ms)
        return ArmDecision(True, "probe", after)
    credit = state.credit_ms + rules.probe_share * no_draft_ms
    return ArmDecision(False, "no-draft", state._replace(waited=state.waited + 1, credit_ms=credit))
