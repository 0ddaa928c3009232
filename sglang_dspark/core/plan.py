"""What a planner is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
NAN = float("nan")

Reason = Literal[
    "search",  # the global search over lagged survivals
    "least-gain",  # trimming would gain less than the set minimum: everything is verified
    "algorithm-1",
    "pinned",
    "verify-all",
    "probe",  # not drafting now, but this step does, to learn about drafts
    "look",  # proposes more than pays, to learn about the later drafts
    "no-draft",  # plain decode is predicted to be better
    "never-draft",  # plain decode because it was asked for
]


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of a coming decode step."""

    step: int  # number of this decode step, rising by one
    slots: I64  # [bs] request-pool index
    generations: I64  # [bs] generation that holds each slot now
    context_tokens: int  # committed tokens of all requests
    gamma: int  # gamma limit: most drafts per request that this step may propose

    def __post_init__(self) -> None:
        if not 0 < len(self.slots) == len(self.generations):
            raise ValueError(f"{len(self.slots)} slots, {len(self.generations)} generations")

    @property
    def num_requests(self) -> int:
        return len(self.slots)


class Plan(NamedTuple):
    """One step, decided. Predictions are NaN where there is no cost table or no confidences."""

    width: int  # drafts proposed per request; 0: plain decode, no draft forward, one row each
    budget: int  # drafts to verify over the batch, exactly: sum of draft_len
    num_rows: int  # rows that the target runs; more than requests + budget only in a tier
    predicted_ms: float  # whole step
    predicted_tokens: float  # committed, next tokens included
    reason: Reason

    @property
    def drafts(self) -> bool:
        return self.width > 0


@dataclass(frozen=True, slots=True)
class Pin:
    """A budget set by hand: `drafts` over the batch, or `fraction` of requests x gamma."""

    drafts: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.drafts is None) == (self.fraction is None):
            raise ValueError("pin either drafts or a fraction of requests x gamma")
        if self.drafts is not None and self.drafts < 0:
            raise ValueError(f"pinned budget {self.drafts}: must be 0 or more drafts")
        if self.fraction is not None and not 0.0 <= self.fraction <= 1.0:
            raise ValueError(f"pinned fraction {self.fraction}: must be within 0..1")

    def budget(self, num_requests: int, gamma: int) -> int:
        """Drafts to verify, at most all there are; a fraction rounds down, as in SGLang."""
        most = num_requests * gamma
        if self.fraction is not None:
            return int(self.fraction * most)
        assert self.drafts is not None
        return min(self.drafts, most)
