"""What a step costs: the record behind T(R, w, B, C) = draft(R, w) + verify(B, C) + rest(R, w).

In ms; R requests, w drafts proposed per request, B verified rows, C context tokens of the whole
batch. Pure data, checked where it is born; `core/costs.py` prices steps with it,
`core/cost_schema.py` reads and writes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sglang_dspark.core.tiers import Tier


class CostTableError(ValueError):
    """A table that cannot be used; `field` names the culprit, the message says why."""

    def __init__(self, field_name: str, reason: str) -> None:
        super().__init__(f"{field_name}: {reason}")
        self.field, self.reason = field_name, reason


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a table was measured and how (architecture.md, decision 10)."""

    kind: str  # profiled | start-up | made-up
    device: str  # model name
    isa: str  # instruction set ("avx512_bf16") or compute capability ("9.0")
    cores: int  # of the machine (CPU) or multiprocessors
    threads: int  # that the engine computes with
    dtype: str  # of the target's weights
    target: str  # digest
    draft: str  # digest
    gamma: int  # drafts per block while measuring
    tp: int
    engine: str  # name and version of the engine
    attention_backend: str
    samples_per_point: int
    date: str  # ISO 8601
    command: str
    residuals: tuple[tuple[str, float], ...] = ()  # (part, relative error of the fit)


@dataclass(frozen=True, slots=True)
class Curve:
    """ms at some sizes."""

    at: tuple[int, ...]  # [n] strictly increasing, >= 1
    ms: tuple[float, ...]  # [n] finite, >= 0


@dataclass(frozen=True, slots=True)
class BlockCost:
    """ms of what a step does once, for some numbers of requests and of drafts per block."""

    at: tuple[int, ...]  # [n] requests, strictly increasing, >= 1
    widths: tuple[int, ...]  # [w] drafts per block, strictly increasing, >= 1
    ms: tuple[tuple[float, ...], ...]  # [n][w] finite, >= 0

    @classmethod
    def of_any_width(cls, at: tuple[int, ...], ms: tuple[float, ...]) -> BlockCost:
        """Costs that do not depend on the width, or of which only one is known."""
        return cls(at, (1,), tuple((value,) for value in ms))

    def widest(self) -> Curve:
        """By requests, for the widest block."""
        return Curve(self.at, tuple(row[-1] for row in self.ms))

    def check(self, name: str) -> None:
        check_axis(name, self.at)
        check_axis(f"{name}.widths", self.widths)
        _check_rows(name, self.ms, len(self.at), len(self.widths))


@dataclass(frozen=True, slots=True)
class Surface:
    """ms at some sizes, for some amounts of context."""

    at: tuple[int, ...]  # [n] strictly increasing, >= 1
    contexts: tuple[int, ...]  # [c] context tokens of the batch, strictly increasing, >= 0
    ms: tuple[tuple[float, ...], ...]  # [n][c] finite, > 0

    def check(self, name: str) -> None:
        check_axis(name, self.at)
        check_axis(f"{name}.contexts", self.contexts, least=0)
        _check_rows(name, self.ms, len(self.at), len(self.contexts), positive=True)

    @property
    def is_flat(self) -> bool:
        """Whether the largest size is no dearer than the smallest, at the least context."""
        return self.ms[-1][0] <= self.ms[0][0] * 1.001


@dataclass(frozen=True, slots=True)
class TierCost:
    """ms of one captured size; contexts as in `verify`."""

    tier: Tier
    ms: tuple[float, ...]  # [c]


@dataclass(frozen=True, slots=True)
class CostTable:
    """A whole table. `no_draft` is the complete plain-decode step, None where nobody measured it.

    Raises CostTableError if an axis is not increasing or a time is negative, NaN or infinite.
    """

    draft: BlockCost  # the draft forward
    verify: Surface  # by verified rows and context: the target's forward
    rest: BlockCost  # the heads' loop, acceptance, commit, the host
    no_draft: Surface | None  # by requests and context: the whole step
    tiers: tuple[TierCost, ...] = ()  # captured sizes that were timed on their own
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        self.draft.check("draft")
        self.verify.check("verify")
        self.rest.check("rest")
        if self.no_draft is not None:
            self.no_draft.check("no_draft")
        for entry in self.tiers:
            check_ms("tiers", entry.ms, len(self.verify.contexts), positive=True)
        if len({entry.tier for entry in self.tiers}) < len(self.tiers):
            raise CostTableError("tiers", "the same (tokens, slots) twice")


def check_axis(name: str, at: Sequence[int], least: int = 1) -> None:
    """Raises CostTableError unless `at` is non-empty, strictly increasing, from `least` up."""
    if not at:
        raise CostTableError(name, "no sizes")
    if at[0] < least or any(b <= a for a, b in pairwise(at)):
        raise CostTableError(
            name, f"sizes {list(at)} are not sorted, each once, and at least {least}"
        )


def _check_rows(
    name: str, ms: Sequence[Sequence[float]], rows: int, columns: int, positive: bool = False
) -> None:
    if len(ms) != rows:
        raise CostTableError(name, f"{len(ms)} rows of ms for {rows} sizes")
    for row in ms:
        check_ms(name, row, columns, positive)


def check_ms(name: str, ms: Sequence[float], count: int, positive: bool = False) -> None:
    """Raises CostTableError unless `ms` holds `count` finite times, >= 0 (> 0 if `positive`)."""
    if len(ms) != count:
        raise CostTableError(name, f"{len(ms)} times for {count} sizes")
    for value in ms:
        if not math.isfinite(value):
            raise CostTableError(name, f"a time is {value}")
        if value < 0 or (positive and value == 0):
            raise CostTableError(name, f"a time of {value} ms is not above 0")
