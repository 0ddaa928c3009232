"""Captured sizes. A tier is (tokens, request slots) and nothing less.

Keyed by its tokens alone, 32 requests x 6 rows replay a graph captured as 192 x 1 and read
foreign memory (faults.md D1). A tier with one token per slot is a plain decode: it serves one
row per request only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Tier:
    tokens: int  # rows that the captured forward runs, padding included
    slots: int  # requests that it has room for

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= self.tokens:
            raise ValueError(f"tier of {self.tokens} tokens with {self.slots} slots")

    def serves(self, num_requests: int, num_rows: int) -> bool:
        """Whether `num_rows` >= num_requests rows of that many requests may be padded to this."""
        one_row_each = self.tokens == self.slots
        return (
            num_requests <= self.slots
            and num_rows <= self.tokens
            and (num_rows == num_requests or not one_row_each)
        )


def sort_tiers(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    """Ascending by tokens, then slots; the order in which `choose_tier` tries them."""
    return tuple(sorted(set(tiers)))


def choose_tier(tiers: Iterable[Tier], num_requests: int, num_rows: int) -> Tier | None:
    """The smallest tier that serves the batch, or None: run it as it is, without a graph.

    tiers: as `sort_tiers` gives them.
    """
    return next((t for t in tiers if t.serves(num_requests, num_rows)), None)
