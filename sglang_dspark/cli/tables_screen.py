"""What a person sees of cost tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import median

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sglang_dspark.core.cost_table import CostTable, Provenance
from sglang_dspark.core.cost_verdict import Server, Verdict
from sglang_dspark.profiling.tables.compare import Comparison, StepDifference
from sglang_dspark.profiling.tables.folders import Entry
from sglang_dspark.profiling.tables.summary import Speed

BAR = 24  # characters of the longest bar
STYLES = {"use": "green", "warn": "yellow", "refuse": "red"}
WORDS = {"use": "use", "warn": "use, with a warning", "refuse": "refused"}


def show_list(console: Console, found: Sequence[Entry], folders: Sequence[Path]) -> None:
    for folder in folders:
        console.print(f"{folder}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if not found:
        console.print(
            "No table in either folder. A server in verify mode compact or cap-accept measures "
            "one when it starts; `sglang-dspark profile` makes a better one."
        )
        return
    for entry in found:
        origin = entry.table.provenance if entry.table else None
        line = Text.assemble("\n", (entry.name, "bold"), f"  {entry.origin}")
        if entry.problem:
            line.append(f"\n  {entry.problem}", style="red")
        elif origin is None:
            line.append("\n  no provenance: used only when named", style="yellow")
        else:
            line.append(f"  {origin.kind}, {origin.samples_per_point} samples, {origin.date}")
            line.append(
                f"\n  {origin.device} ({origin.isa}), threads {origin.threads}, {origin.dtype}"
            )
            line.append(f"\n  target {origin.target}, draft {origin.draft}, gamma {origin.gamma}")
        console.print(line, highlight=False)


def show_table(
    console: Console,
    path: Path,
    schema: str,
    table: CostTable,
    speeds: Sequence[Speed],
    gamma: int,
) -> None:
    console.print(f"[bold]{path.name}[/]  schema {schema}", highlight=False)
    if table.provenance is None:
        console.print("No provenance: nobody can tell where it was measured.", style="yellow")
    else:
        _show_provenance(console, table.provenance)
    console.print(_speed_table(table, speeds, gamma))
    console.print(_verify_table(table))


def _show_provenance(console: Console, origin: Provenance) -> None:
    grid = Table.grid(padding=(0, 2))
    measured = f"{origin.kind}, {origin.samples_per_point} samples per point, {origin.date}"
    rows = {
        "measured": measured,
        "device": f"{origin.device} ({origin.isa}), cores {origin.cores}, threads {origin.threads}",
        "models": f"target {origin.target}, draft {origin.draft}, {origin.dtype}, "
        f"gamma {origin.gamma}, TP {origin.tp}",
        "engine": f"{origin.engine}, attention {origin.attention_backend}",
        "command": origin.command,
        "residuals": ", ".join(f"{part} {share:.1%}" for part, share in origin.residuals)
        or "none: not fitted",
    }
    for name, value in rows.items():
        grid.add_row(Text(name, style="dim"), Text(value))
    console.print(grid)


def _speed_table(table: CostTable, speeds: Sequence[Speed], gamma: int) -> Table:
    context = table.verify.contexts[0]
    result = Table(
        box=SIMPLE,
        pad_edge=False,
        title=f"ms by requests; full blocks of 1 + {gamma} rows; {context} context tokens",
        title_justify="left",
    )
    columns = ("requests", "draft", "rest", "rows", "verify", "step", "steps/s", "no-draft")
    for name in (*columns, "steps/s"):
        result.add_column(name, justify="right")
    for s in speeds:
        plain = "-" if s.no_draft_ms is None else f"{s.no_draft_ms:.2f}"
        plain_sps = "-" if s.no_draft_sps is None else f"{s.no_draft_sps:.1f}"
        beyond = "" if s.measured else "*"
        parts = (f"{s.draft_ms:.2f}", f"{s.rest_ms:.2f}", f"{s.rows}{beyond}")
        whole = (f"{s.verify_ms:.2f}", f"{s.step_ms:.2f}", f"{s.sps:.1f}", plain, plain_sps)
        result.add_row(str(s.requests), *parts, *whole)
    if not all(s.measured for s in speeds):
        result.caption = "* outside the measured rows: the nearest measured size is shown"
    return result


def _verify_table(table: CostTable) -> Table:
    surface = table.verify
    result = Table(
        box=SIMPLE,
        pad_edge=False,
        title="verify, ms by rows and context tokens",
        title_justify="left",
    )
    result.add_column("rows", justify="right")
    for context in surface.contexts:
        result.add_column(f"{context}", justify="right")
    result.add_column("")
    most = max(row[0] for row in surface.ms)
    for rows, times in zip(surface.at, surface.ms, strict=True):
        bar = "█" * max(1, round(BAR * times[0] / most))
        result.add_row(str(rows), *(f"{ms:.2f}" for ms in times), Text(bar, style="cyan"))
    return result


def show_verdict(
    console: Console,
    path: Path,
    verdict: Verdict,
    unasked: Verdict | None,
    server: Server | None,
) -> None:
    judged = f"for {server.device}, gamma {server.gamma}" if server else "by itself, for no server"
    line = Text(f"{path.name}, judged {judged}: ")
    line.append(WORDS[verdict.level], style=f"bold {STYLES[verdict.level]}")
    console.print(line)
    for finding in sorted(verdict.findings, key=lambda f: f.level != "refuse"):
        style = STYLES[finding.level]
        console.print(f"  {finding.level:7} {finding}", style=style, markup=False, highlight=False)
    if unasked is not None and unasked.level == "refuse" != verdict.level:
        console.print("  Used only when named with --speculative-dspark-sps-table-path.")


def show_comparison(console: Console, a: str, b: str, result: Comparison) -> None:
    console.print(f"A  {a}\nB  {b}", markup=False, highlight=False)
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("part")
    for name in ("size", "A ms", "B ms", "B against A", "other contexts"):
        table.add_column(name, justify="right")
    for part, differences in groupby(result.parts, key=lambda d: d.part):
        for number, (size, group) in enumerate(groupby(differences, key=lambda d: d.size)):
            first, *others = group
            spread = [d.relative for d in others]
            table.add_row(
                part if number == 0 else "",
                f"{size} {'rows' if part == 'verify' else 'requests'}",
                f"{first.a_ms:.2f}",
                f"{first.b_ms:.2f}",
                _percent(first.relative),
                f"{_percent(min(spread))} .. {_percent(max(spread))}" if spread else "",
            )
    console.print(table)
    for line in result.only_in:
        console.print(f"  {line}", style="yellow", highlight=False)
    typical = median(abs(step.relative) for step in result.steps)
    console.print(
        f"Whole steps ({len(result.steps)} priced): median difference {typical:.1%}; largest "
        f"{_percent(result.largest.relative)}: {_step(result.largest)}.",
        highlight=False,
    )


def _step(step: StepDifference) -> str:
    kind = "no-draft" if step.draft_len is None else f"draft_len {step.draft_len}"
    return (
        f"{step.requests} requests, {kind}, {step.context} context tokens, "
        f"{step.a_ms:.2f} ms in A, {step.b_ms:.2f} ms in B"
    )


def _percent(share: float) -> str:
    return f"{share:+.1%}"
