"""May this cost table steer that server? One answer per differing field, never in silence.

A table of another machine or model predicts the wrong thing with confidence, so what identifies
either is refused; what only shifts the times somewhat is used with a warning (architecture.md,
decision 10).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sglang_dspark.core.cost_schema import parse_table
from sglang_dspark.core.cost_table import CostTable, CostTableError

Level = Literal["use", "warn", "refuse"]

# A table with another one of these was measured on something else.
IDENTITY = ("device", "isa", "threads", "dtype", "target", "draft", "gamma", "tp")
# These move the times, mostly all of them together.
CIRCUMSTANCE = ("cores", "engine", "attention_backend")
FEW_SAMPLES, LARGE_RESIDUAL = 3, 0.15


@dataclass(frozen=True, slots=True)
class Server:
    """What a table must fit; field meanings as in `cost_table.Provenance`."""

    device: str
    isa: str
    cores: int
    threads: int
    dtype: str
    target: str
    draft: str
    gamma: int
    tp: int
    engine: str
    attention_backend: str


@dataclass(frozen=True, slots=True)
class Finding:
    level: Literal["warn", "refuse"]
    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Verdict:
    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """The worst finding; "use" if there is none."""
        levels = {f.level for f in self.findings}
        return "refuse" if "refuse" in levels else "warn" if levels else "use"

    @property
    def reasons(self) -> tuple[str, ...]:
        """One line per finding, refusals first."""
        ordered = sorted(self.findings, key=lambda f: f.level != "refuse")
        return tuple(map(str, ordered))


def judge(table: CostTable, server: Server, *, named_by_user: bool) -> Verdict:
    """Compare a table with the server that wants to use it.

    named_by_user: the user gave this file. Only then may a table without provenance be used.
    """
    findings = (*_shape(table), *_origin(table, server, named_by_user))
    return Verdict(findings)


def examine(text: str, server: Server, *, named_by_user: bool) -> tuple[CostTable | None, Verdict]:
    """`judge` of a file's content; one that does not parse is refused, without a table."""
    try:
        table = parse_table(text)
    except CostTableError as error:
        return None, Verdict((Finding("refuse", error.field, error.reason),))
    return table, judge(table, server, named_by_user=named_by_user)


def _shape(table: CostTable) -> Iterator[Finding]:
    verify = table.verify
    if len(verify.at) < 2:
        yield Finding("refuse", "verify", "one size only: every budget would cost the same")
    elif verify.is_flat:
        yield Finding("refuse", "verify", "flat: more rows never cost more, nothing to trade")
    if len(verify.contexts) < 2:
        yield Finding("warn", "verify.contexts", "one context length: long prompts look too cheap")
    if table.no_draft is None:
        yield Finding("warn", "no_draft", "not priced: every step will draft")


def _origin(table: CostTable, server: Server, named_by_user: bool) -> Iterator[Finding]:
    found = table.provenance
    if found is None:
        level: Literal["warn", "refuse"] = "warn" if named_by_user else "refuse"
        yield Finding(level, "provenance", "none: nobody can tell where it was measured")
        return
    for name in (*IDENTITY, *CIRCUMSTANCE):
        theirs, ours = getattr(found, name), getattr(server, name)
        if theirs != ours:
            level = "refuse" if name in IDENTITY else "warn"
            yield Finding(level, name, f"table has {theirs!r}, this server {ours!r}")
    if found.kind == "made-up":
        level = "warn" if named_by_user else "refuse"
        yield Finding(level, "kind", "made-up numbers, not a measurement")
    if found.samples_per_point < FEW_SAMPLES:
        yield Finding("warn", "samples_per_point", f"only {found.samples_per_point}")
    for part, residual in found.residuals:
        if not residual <= LARGE_RESIDUAL:
            yield Finding("warn", f"residuals.{part}", f"{residual:.0%} off its own measurements")
