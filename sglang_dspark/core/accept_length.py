"""Accept length as sums and counts, so that steps, requests and ranks add up (paper.md, "Words").

A pair (request, step) counts when the step went through verification, draft_len 0 included;
a no-draft step verifies nothing and must not be added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AcceptCounts:
    pairs: int = 0  # (request, step) pairs that went through verification
    accepted: int = 0  # drafts committed
    verified: int = 0  # drafts inside the windows
    uncapped: int = 0  # drafts accepted had the window been the whole block (cap-accept only)

    def __add__(self, other: AcceptCounts) -> AcceptCounts:
        return AcceptCounts(
            self.pairs + other.pairs,
            self.accepted + other.accepted,
            self.verified + other.verified,
            self.uncapped + other.uncapped,
        )

    @property
    def accept_length(self) -> float:
        """Tokens per verification, the next token included; nan before the first one."""
        return self._per_pair(self.accepted)

    @property
    def ceiling(self) -> float:
        """The accept length of an uncut window; equals `accept_length` unless cap-accept."""
        return self._per_pair(self.uncapped)

    @property
    def accept_rate(self) -> float:
        """Share of verified drafts that were accepted; nan if none was verified."""
        return self.accepted / self.verified if self.verified else float("nan")

    def _per_pair(self, drafts: int) -> float:
        return 1.0 + drafts / self.pairs if self.pairs else float("nan")


def count_step(
    draft_lens: Iterable[int], accepted: Iterable[int], uncapped: Iterable[int] | None = None
) -> AcceptCounts:
    """Counts of one verified step, per request: window, committed drafts and, in cap-accept,
    drafts the whole block would have had accepted (None: the window was all there was).

    Raises ValueError if a request accepted more than its window, or more than its ceiling.
    """
    lens, kept = list(draft_lens), list(accepted)
    most = kept if uncapped is None else list(uncapped)
    for length, a, u in zip(lens, kept, most, strict=True):
        if not 0 <= a <= min(length, u):
            raise ValueError(f"accepted {a} drafts of a window of {length} with ceiling {u}")
    return AcceptCounts(len(lens), sum(kept), sum(lens), sum(most))
