"""How many drafts to propose per request: fewer where the last ones cost more than they bring.

The window of a request is cut after its block was drafted, so a block that is always cut short
was drafted in part for nothing. On a GPU the whole block costs about as much as one draft; on a
CPU, or with many requests, each draft has its price, which the cost table knows.

The evidence for another width is a running mean of log(rate there / rate at the present one),
each rate being that of its best budget. A step compares the present width with one other, in
turn. Like every decision before the draft, it rests on earlier steps only (paper.md, "What keeps
it lossless").

Past the present width nothing is learned about the drafts, so now and then a step proposes all
of them, whenever `look_share` of the predicted time has paid for what that costs more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class WidthRules:
    margin: float = 0.005  # relative gain in tokens per ms that a change must promise
    inertia: float = 7.0  # requests of old evidence that a comparison of R requests weighs against
    look_share: float = 0.005  # of the time, for proposing whole blocks to learn about them
    crowd: int = 32  # with more requests than this, the comparisons become rarer

    def __post_init__(self) -> None:
        if self.margin < 0 or self.inertia < 0 or self.crowd < 1 or not 0 <= self.look_share < 1:
            raise ValueError(
                f"{self}: margin and inertia must be >= 0, crowd >= 1, look_share within 0..1"
            )


class WidthState(NamedTuple):
    """What outlasts a step."""

    present: int | None = None  # None: the widest allowed
    evidence: tuple[float, ...] = ()  # [gamma], by width - 1
    turn: int = 0  # comparisons made
    credit_ms: float = 0.0  # saved up for a look

    def width(self, gamma: int) -> int:
        """The present width under a gamma limit."""
        return gamma if self.present is None else min(self.present, gamma)

    def rival(self, rules: WidthRules, gamma: int, step: int, num_requests: int) -> int | None:
        """The width to compare with in this step; None: none this time."""
        every = -(-num_requests // rules.crowd)
        if gamma == 1 or step % every:
            return None
        place = 1 + self.turn % (gamma - 1)  # all widths but the present one, in turn
        return (self.width(gamma) - 1 + place) % gamma + 1

    def compared(
        self, rules: WidthRules, gamma: int, rival: int, gain: float, num_requests: int
    ) -> WidthState:
        """After a comparison. gain: log(rate at `rival` / rate at the present width)."""
        evidence = [*self.evidence, *(0.0,) * (gamma - len(self.evidence))]
        old = evidence[rival - 1]
        evidence[rival - 1] += (gain - old) * num_requests / (num_requests + rules.inertia)
        present, lead = self.present, evidence[rival - 1]
        if lead > math.log1p(rules.margin):
            present, evidence = rival, [value - lead for value in evidence]
        return self._replace(present=present, evidence=tuple(evidence), turn=self.turn + 1)

    def paid(self, rules: WidthRules, step_ms: float, extra_ms: float) -> tuple[bool, WidthState]:
        """(whether this step proposes whole blocks, state after it).

        extra_ms: what that costs more than the step_ms of the present width.
        """
        credit_ms = self.credit_ms + rules.look_share * step_ms
        if credit_ms < extra_ms:
            return False, self._replace(credit_ms=credit_ms)
        return True, self._replace(credit_ms=0.0)
