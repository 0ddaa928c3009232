"""What a report says, before it is Markdown or HTML."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_dspark.profiling.report.plot import LeftOut, Plot

ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text; the first `words` columns are words, the rest numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: int = 1
    prose: bool = False  # long texts, which may be broken into lines


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    facts: tuple[tuple[str, str], ...]  # what was measured, where, how
    findings: tuple[str, ...]
    notes: tuple[str, ...]  # what a reader must know to trust the numbers
    plots: tuple[Plot, ...]
    left_out: tuple[LeftOut, ...]
    numbers: tuple[Table, ...]
    origin: tuple[Table, ...]  # servers, sampling, versions, plan
