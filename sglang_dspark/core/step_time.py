"""What steps take beside what the cost table said: the machine's present speed, and packing.

A table is measured once. A busy or throttled machine moves all its prices together, and a mean
over one kind of step goes stale while another kind runs: comparing two such means would take a
change of speed for a difference between the kinds. So there is one speed, learned from every
step, and one surcharge for packed windows, whose cost beside whole blocks a table does not hold.
Only step times enter, never tokens, and only those of steps that have ended: what is planned
stays causal.
"""

from __future__ import annotations

import math
from typing import Literal

from sglang_dspark.core.running import MeanByRequests

Kind = Literal["plain", "whole", "windows"]

MOST = math.log(2.0)  # one step counts as at most twice its price: a pause is not a step time
FORGET = 0.002
MOST_SURCHARGE = math.log(1.25)


def kind_of(num_requests: int, width: int, budget: int) -> Kind:
    """plain: no drafts; whole: every draft is verified; windows: rows are packed."""
    if width == 0:
        return "plain"
    return "whole" if budget == num_requests * width else "windows"


class StepTime:
    """Running means of log(taken / priced), by request count; both start from a factor of 1."""

    def __init__(self, keep: float = 0.97, keep_surcharge: float = 0.99) -> None:
        """Shares of the means that survive one more step."""
        self._speed = MeanByRequests(keep, first=0.0)
        self._surcharge = MeanByRequests(keep_surcharge, first=0.0)

    def add(self, kind: Kind, num_requests: int, taken_ms: float, table_ms: float) -> None:
        """One step. table_ms: its price in the table; NaN: it has none, and nothing is learned."""
        if not (table_ms > 0 and taken_ms > 0):
            return
        speed, surcharge = (m.at(num_requests, 0.0) for m in (self._speed, self._surcharge))
        error = min(max(math.log(taken_ms / table_ms), -MOST), MOST)
        if kind == "windows":
            left = min(max(error - speed, 0.0), MOST_SURCHARGE)
            self._surcharge.add(num_requests, left)
            error -= surcharge
        elif kind == "whole":
            self._surcharge.fade(num_requests, FORGET)  # so that windows are tried again
        self._speed.add(num_requests, error)

    def factor(self, kind: Kind, num_requests: int) -> float:
        """To multiply the table's price with."""
        log_factor = self._speed.at(num_requests, 0.0)
        if kind == "windows":
            log_factor += self._surcharge.at(num_requests, 0.0)
        return math.exp(log_factor)
