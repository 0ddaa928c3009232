"""What `sglang-dspark calibrate` shows."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_dspark.profiling.calibrate.reason import TARGET_ECE
from sglang_dspark.profiling.calibrate.report import Group, Position, Report

COLUMNS = ("", "T", "accepted", "ECE", "after", "by chance", "monotone", "Brier", "AUC")


def show_report(console: Console, report: Report) -> None:
    """One table per group of held-out blocks, then what is worth saying."""
    console.print(
        f"Fitted on {report.fit_rounds:,} blocks, judged on {report.held_out_rounds:,} of other "
        f"requests. ECE of the cumulative product in {report.bins} bins, Brier score and AUC, each "
        "before and after. By chance: the ECE that a perfect predictor shows at this size (mean, "
        "95 %). Monotone: the ECE of the best rising map in place of a temperature.",
        highlight=False,
    )
    for group in report.groups:
        console.print(_table(group))
    pooled = report.groups[0]
    for position in pooled.positions:
        if position.remark:
            console.print(f"[yellow]{escape(position.remark)}[/]", highlight=False)
    for note in report.notes:
        console.print(f"[yellow]{escape(note)}[/]", highlight=False)


def _table(group: Group) -> Table:
    kind = ", not fitted on" if group.kind == "evaluated" else ""
    table = Table(
        title=f"{group.name}{kind}: {group.rounds:,} blocks of {group.requests:,} requests",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for position in group.positions:
        table.add_row(*_cells(position))
    return table


def _cells(p: Position) -> list[str]:
    style = "green" if p.after.ece <= max(TARGET_ECE, p.perfect_ece_95) else "yellow"
    return [
        str(p.position),
        f"{p.temperature:.2f}",
        f"{p.accepted:.1%}",
        f"{p.before.ece:.1%}",
        f"[{style}]{p.after.ece:.1%}[/]",
        f"{100 * p.perfect_ece:.1f}, {p.perfect_ece_95:.1%}",
        f"{p.monotone_ece:.1%}",
        f"{_short(p.before.brier)} {_short(p.after.brier)}",
        f"{_short(p.before.auc)} {_short(p.after.auc)}",
    ]


def _short(value: float | None) -> str:
    """Three decimals without the leading 0, which would not fit in 80 columns."""
    return "-" if value is None else f"{value:.3f}".removeprefix("0")
