"""How two tables differ: part by part at their sizes, and in the price of whole steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from sglang_dspark.core.cost_schema import NO_COST, at, once_per_step
from sglang_dspark.core.cost_table import CostTable, Curve, Surface
from sglang_dspark.core.costs import StepCosts

DEFAULT_GAMMA = 7  # where neither table says how long its blocks are


@dataclass(frozen=True, slots=True)
class Difference:
    """One part at one size, in ms; between measured sizes both are read linearly."""

    part: str  # draft | rest | verify | no_draft; draft+rest where a table has only the sum
    size: int  # requests, or verified rows
    context: int | None  # tokens of the batch; None where the part has none
    a_ms: float
    b_ms: float

    @property
    def relative(self) -> float:
        """(b - a) / a; 0 where both are 0, infinite where only a is."""
        return _relative(self.a_ms, self.b_ms)


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The price of one step by both tables."""

    requests: int
    draft_len: int | None  # verified drafts of each request; None: a no-draft step
    context: int  # tokens of the batch
    a_ms: float
    b_ms: float

    @property
    def relative(self) -> float:
        return _relative(self.a_ms, self.b_ms)


@dataclass(frozen=True, slots=True)
class Comparison:
    parts: tuple[Difference, ...]
    steps: tuple[StepDifference, ...]
    only_in: tuple[str, ...]  # parts that one table has and the other has not

    @property
    def largest(self) -> StepDifference:
        """The step whose price differs most, relative to the first table."""
        return max(self.steps, key=lambda step: abs(step.relative))


def compare(a: CostTable, b: CostTable, gamma: int | None = None) -> Comparison:
    """Differences at every size that either table measured and both cover.

    gamma: the longest block to price; without it the shorter one of the tables' own.
    """
    if NO_COST in (a.draft, b.draft):  # imported: draft and rest cannot be told apart
        per_request = [*_curves("draft+rest", once_per_step(a), once_per_step(b))]
    else:
        per_request = [
            *_curves("draft", a.draft.widest(), b.draft.widest()),
            *_curves("rest", a.rest.widest(), b.rest.widest()),
        ]
    parts = [*per_request, *_surfaces("verify", a.verify, b.verify)]
    only_in = []
    if a.no_draft is not None and b.no_draft is not None:
        parts += _surfaces("no_draft", a.no_draft, b.no_draft)
    elif a.no_draft is not None or b.no_draft is not None:
        only_in.append(f"no_draft only in {'A' if a.no_draft is not None else 'B'}")
    if {t.tier for t in a.tiers} != {t.tier for t in b.tiers}:
        only_in.append(f"captured sizes: {len(a.tiers)} in A, {len(b.tiers)} in B")
    return Comparison(tuple(parts), tuple(_steps(a, b, gamma)), tuple(only_in))


def comparison_record(result: Comparison) -> dict[str, Any]:
    """Plain JSON; a difference relative to 0 ms is null."""
    return {
        "parts": [_record(part) for part in result.parts],
        "steps": [_record(step) for step in result.steps],
        "only_in": list(result.only_in),
        "largest": _record(result.largest),
    }


def _record(found: Difference | StepDifference) -> dict[str, Any]:
    return asdict(found) | {"relative": found.relative if isfinite(found.relative) else None}


def common_gamma(*tables: CostTable) -> int:
    """Drafts per block that every one of the tables was measured for."""
    known = [t.provenance.gamma for t in tables if t.provenance is not None]
    return min(known, default=DEFAULT_GAMMA)


def _relative(a_ms: float, b_ms: float) -> float:
    if a_ms == b_ms:
        return 0.0
    return (b_ms - a_ms) / a_ms if a_ms else float("inf")


def _curves(part: str, a: Curve, b: Curve) -> Iterator[Difference]:
    for size in _shared(a.at, b.at):
        yield Difference(part, size, None, at(a, size), at(b, size))


def _surfaces(part: str, a: Surface, b: Surface) -> Iterator[Difference]:
    for size in _shared(a.at, b.at):
        for context in _shared(a.contexts, b.contexts):
            yield Difference(part, size, context, _ms(a, size, context), _ms(b, size, context))


def _ms(surface: Surface, size: int, context: int) -> float:
    """ms at a size and a context, linear in both, clamped."""
    by_context = tuple(at(_column(surface, c), size) for c in range(len(surface.contexts)))
    return at(Curve(surface.contexts, by_context), context)


def _column(surface: Surface, index: int) -> Curve:
    return Curve(surface.at, tuple(row[index] for row in surface.ms))


def _shared(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Sizes of either axis that lie within both; where none does, the first of the larger one."""
    low, high = max(a[0], b[0]), min(a[-1], b[-1])
    return sorted({size for size in (*a, *b) if low <= size <= high}) or [low]


def _steps(a: CostTable, b: CostTable, gamma: int | None) -> Iterator[StepDifference]:
    """A grid of steps: requests x draft_len x context, and no-draft steps."""
    longest = common_gamma(a, b) if gamma is None else gamma
    # Where parts have one size only (SGLang's diagonal schema), rows tell how many requests fit.
    most = max(
        min(max(t.draft.at[-1], t.rest.at[-1], t.verify.at[-1] // (longest + 1)) for t in (a, b)), 1
    )
    sizes = [2**k for k in range(most.bit_length()) if 2**k < most] + [most]
    prices = [StepCosts(t, max_requests=most, gamma=longest) for t in (a, b)]
    for context in _shared(a.verify.contexts, b.verify.contexts):
        for n in sizes:
            drafting = [p.drafting_ms(n, context, longest) for p in prices]
            for draft_len in sorted({0, 1, (longest + 1) // 2, longest}):
                a_ms, b_ms = (float(d[n * draft_len]) for d in drafting)
                yield StepDifference(n, draft_len, context, a_ms, b_ms)
            if all(p.prices_no_draft for p in prices):
                a_ms, b_ms = (p.no_draft_ms(n, context) for p in prices)
                yield StepDifference(n, None, context, a_ms, b_ms)
