"""A table in numbers that a person compares: steps per second, and one row for lists."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from sglang_dspark.core.cost_schema import at, least_context
from sglang_dspark.core.cost_table import CostTable, Provenance
from sglang_dspark.profiling.tables.folders import Entry


@dataclass(frozen=True, slots=True)
class Speed:
    """Steps of `requests` full blocks, and plain decode beside them, at the least context."""

    requests: int
    rows: int  # verified rows: requests x (gamma + 1)
    measured: bool  # the rows lie within the table; else the server extrapolates
    draft_ms: float
    verify_ms: float
    rest_ms: float
    no_draft_ms: float | None

    @property
    def step_ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.rest_ms

    @property
    def sps(self) -> float:
        """Steps per second."""
        return 1e3 / self.step_ms

    @property
    def no_draft_sps(self) -> float | None:
        return None if self.no_draft_ms is None else 1e3 / self.no_draft_ms


def speeds(table: CostTable, gamma: int) -> list[Speed]:
    """One row per measured number of requests."""
    verify = least_context(table.verify)
    no_draft = None if table.no_draft is None else least_context(table.no_draft)
    counts = sorted({*table.draft.at, *table.rest.at})
    if counts == [1]:  # imported: rows are the only axis
        counts = sorted({max(1, rows // (gamma + 1)) for rows in table.verify.at})
    return [
        Speed(
            n,
            n * (gamma + 1),
            verify.at[0] <= n * (gamma + 1) <= verify.at[-1],
            at(table.draft.widest(), n),
            at(verify, n * (gamma + 1)),
            at(table.rest.widest(), n),
            None if no_draft is None else at(no_draft, n),
        )
        for n in counts
    ]


def speed_record(speed: Speed) -> dict[str, Any]:
    return asdict(speed) | {
        "step_ms": speed.step_ms,
        "sps": speed.sps,
        "no_draft_sps": speed.no_draft_sps,
    }


def provenance_record(origin: Provenance) -> dict[str, Any]:
    found = {f.name: getattr(origin, f.name) for f in fields(Provenance)}
    return found | {"residuals": dict(origin.residuals)}


def entry_record(entry: Entry) -> dict[str, Any]:
    """What `list` tells of a file."""
    origin = entry.table.provenance if entry.table else None
    return {
        "name": entry.name,
        "origin": entry.origin,
        "path": str(entry.path),
        "problem": entry.problem,
        "provenance": provenance_record(origin) if origin else None,
    }
