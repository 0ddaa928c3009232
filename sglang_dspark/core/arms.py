"""Draft or not in the next step: hysteresis, and probes that stay within 2 %.

The evidence is a running mean of log(rate with drafts / rate of plain decode). One block says
little and a batch says much, so a step of R requests weighs R / (R + inertia): at 1 request it
takes tens of steps to change the mind, at 32 a few. Switching back and forth needs it to
cross a band around 0.

Without drafts nothing is learned about drafts, so now and then a step drafts all the same. Such
a probe comes after at least `first_wait` steps, twice as many after each one in vain, and only
when `probe_share` of the predicted time spent without drafts has paid for it. It verifies a draft
of each request even where none seems worth it: confidences alone do not tell how good they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from sglang_dspark.core.budget import Choice

MOST_EVIDENCE = 0.5  # one step counts as at most this, so that no past is too bad to be undone


@dataclass(frozen=True, slots=True)
class ArmRules:
    margin: float = 0.02  # relative gain in tokens per ms that a switch must promise
    inertia: float = 31.0  # request-steps of old evidence that a step of R requests weighs against
    probe_share: float = 0.02  # of steps, and of the time spent without drafts
    first_wait: int = 50  # steps without drafts before a probe; >= 1 / probe_share - 1
    longest_wait: int = 1600

    def __post_init__(self) -> None:
        if self.margin < 0 or self.inertia < 0 or not 0 <= self.probe_share < 1:
            raise ValueError(f"{self}: margin and inertia must be >= 0, probe_share within 0..1")
        if (self.first_wait + 1) * self.probe_share < 1 or self.longest_wait < self.first_wait:
            raise ValueError(
                f"first_wait {self.first_wait} probes more than {self.probe_share:.0%} of steps, "
                f"or exceeds longest_wait {self.longest_wait}"
            )


class ArmState(NamedTuple):
    drafting: bool = True
    evidence: float = 0.1  # mean log rate ratio; a new server believes in its draft a little
    waited: int = 0  # steps without drafts since the last probe
    wait: int = 0  # steps to wait before the next one; 0 = first_wait
    credit_ms: float = 0.0  # saved up for a probe


class ArmDecision(NamedTuple):
    drafts: bool
    reason: str  # draft | no-draft | probe
    state: ArmState  # for the next step


def decide_arm(
    state: ArmState,
    rules: ArmRules,
    draft: Choice,
    no_draft_ms: float,
    num_requests: int,
    probe_ms: float,
    informed: bool = True,
) -> ArmDecision:
    """One step's arm.

    draft: the best drafting step; no_draft_ms: what plain decode would take, probe_ms: what a
    probe would; informed: whether `draft` rests on the batch's own confidences of one step, not on
    running means alone.
    """
    drafting, evidence, waited, wait, credit_ms = state
    gain = math.log(draft.tokens * no_draft_ms / (draft.ms * num_requests))
    gain = min(max(gain, -MOST_EVIDENCE), MOST_EVIDENCE)
    evidence += (gain - evidence) * num_requests / (num_requests + rules.inertia)
    band = math.log1p(rules.margin)
    if evidence > band if not drafting else evidence >= -band:
        return ArmDecision(True, "draft", ArmState(True, evidence, 0, wait, 0.0))
    if informed and gain > 0 and not drafting:  # the last probe was not in vain
        wait = rules.first_wait
    wait = wait or rules.first_wait
    extra_ms = max(probe_ms - no_draft_ms, 0.0)
    if waited >= wait and credit_ms >= extra_ms:
        longer = min(2 * wait, rules.longest_wait)
        return ArmDecision(
            True, "probe", ArmState(False, evidence, 0, longer, credit_ms - extra_ms)
        )
    credit_ms += rules.probe_share * no_draft_ms
    return ArmDecision(False, "no-draft", ArmState(False, evidence, waited + 1, wait, credit_ms))
