"""What `sglang-dspark simulate` shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_dspark.profiling.simulate.compare import Comparison, Point
from sglang_dspark.profiling.simulate.replay import Outcome

COLUMNS = ("policy", "tokens/s", "draft_len", "no-draft", "accept length", "regret")


def show_outcomes(console: Console, outcomes: Sequence[Outcome], notes: Sequence[str]) -> None:
    """One table per concurrency."""
    for concurrency, group in groupby(outcomes, key=lambda o: o.concurrency):
        rows = list(group)
        table = _table(
            f"Predicted: {rows[0].requests:,} requests, {concurrency} at once",
            COLUMNS,
        )
        for outcome in rows:
            table.add_row(*_cells(outcome))
        console.print(table)
    _show_notes(console, notes)


def _cells(o: Outcome) -> list[str]:
    return [
        o.policy,
        f"{o.tokens_per_s:,.1f}",
        _number(o.draft_len),
        f"{o.no_draft_share:.0%}",
        _number(o.accept_length),
        "-" if math.isnan(o.regret) else f"{o.regret:.1%}",
    ]


def show_comparison(console: Console, comparison: Comparison, notes: Sequence[str]) -> None:
    """Measured and predicted ratio of every point, and the share of signs that agree."""
    table = _table(
        f"tokens/s of {comparison.ours} / {comparison.against}",
        ("workload", "at once", "measured (95 %)", "predicted", "sign"),
    )
    for point in comparison.points:
        table.add_row(*_point_cells(point))
    console.print(table)
    found = comparison.significant
    if found:
        agreeing = sum(p.agrees for p in found)
        faster = sum(p.measured > 1 for p in found)
        console.print(
            f"{agreeing} of {len(found)} significant points agree ({comparison.share:.0%}); "
            f"{comparison.ours} was faster in {faster} of them.",
            highlight=False,
        )
    else:
        console.print("No point is significant: every interval contains 1.", highlight=False)
    _show_notes(console, notes)


def _point_cells(p: Point) -> list[str]:
    sign = "agrees" if p.agrees else "[red]differs[/]"
    return [
        escape(p.workload),
        str(p.concurrency),
        f"{p.measured:.2f} ({p.low:.2f} .. {p.high:.2f})",
        f"{p.predicted:.2f}",
        sign if p.is_significant else "[dim]not significant[/]",
    ]


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _show_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"[yellow]{escape(note)}[/]", highlight=False)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
