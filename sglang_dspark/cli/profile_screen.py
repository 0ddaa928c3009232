"""What a person sees of a profile: the plan, progress while it runs, and one screen at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_dspark.cli.progress import StageProgress
from sglang_dspark.profiling.profile.cells import Group, Plan, expected_seconds

FAILURES_SHOWN = 5


class ProfileProgress(StageProgress):
    """The profile's stages; a repeat has a bar over its groups."""

    def __init__(self, console: Console, minutes: float) -> None:
        super().__init__(console)
        self._budget_s = 60 * minutes

    def repeat(self, number: int, groups: int, seconds: float) -> None:
        self.console.print(
            f"[bold]Repeat {number + 1}[/]: {groups} batches; {seconds:.0f} s of "
            f"{self._budget_s:.0f} s used",
            highlight=False,
        )
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(f"Repeat {number + 1}", total=groups)


def plan_json(plan: Plan, minutes: float) -> dict[str, Any]:
    """The dry run for a script."""
    return {
        "cells": [
            {
                "requests": c.requests,
                "context": c.context,
                "budget": c.budget,
                "rows": c.rows,
                "held_out": c in plan.held_out,
            }
            for c in plan.cells
        ],
        "left_out": list(plan.left_out),
        "expected_seconds_per_repeat": round(_repeat_seconds(plan)),
        "minutes": minutes,
    }


def show_plan(console: Console, plan: Plan, minutes: float) -> None:
    table = Table(title=f"{len(plan.cells)} cells", title_justify="left")
    for name in ("requests", "context", "budgets (drafts over the batch; * held out)", "guess"):
        table.add_column(name, justify="left" if "budgets" in name else "right")
    for group in plan.groups:
        table.add_row(
            str(group.requests),
            str(group.context),
            _budgets(plan, group),
            f"{expected_seconds(group, plan.steps):.1f} s",
        )
    console.print(table)
    for line in plan.left_out:
        console.print(f"left out: {line}", style="dim", highlight=False)
    console.print(
        f"One repeat: about {_repeat_seconds(plan):.0f} s (a guess: the bundled pair on two CPU "
        f"cores). Repeats go on for {minutes:g} min, less if every interval is tight before, "
        "more if one repeat takes longer; starting the server comes on top.",
        highlight=False,
    )


def _budgets(plan: Plan, group: Group) -> str:
    words = []
    for cell in group.cells:
        word = "no draft" if cell.budget is None else str(cell.budget)
        word += "" if cell.width is None else f" (width {cell.width})"
        words.append(word + ("*" if cell in plan.held_out else ""))
    return ", ".join(words)


def _repeat_seconds(plan: Plan) -> float:
    return sum(expected_seconds(group, plan.steps) for group in plan.groups)


def show_summary(console: Console, record: Mapping[str, Any]) -> None:
    """One screen: the parts by requests, the held-out cells, what failed, the verdict."""
    table = Table(title="median ms of steps that draft, by requests", title_justify="left")
    parts = {"requests": "requests", "draft_ms": "draft", "target_ms": "target", "rest_ms": "rest"}
    parts |= {"step_ms": "step", "gap_ms": "engine's gap (not in the table)"}
    for name in parts.values():
        table.add_column(name, justify="right")
    for row in record["by_requests"]:
        cells = (row[key] for key in parts)
        table.add_row(*(_cell(value) for value in cells))
    console.print(table)
    _show_cells(console, record)
    _show_speed(console, record["machine_speed"])
    _show_held_out(console, record["held_out"])
    verdict = record["verdict"]
    style = {"use": "green", "warn": "yellow", "refuse": "red"}[verdict["level"]]
    console.print(f"This server's verdict on the table: [{style}]{verdict['level']}[/]")
    for reason in verdict["reasons"]:
        console.print(f"  {reason}", style=style, markup=False, highlight=False)


def _cell(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.2f}"


def _show_cells(console: Console, record: Mapping[str, Any]) -> None:
    repeats, widths = record["repeats"], record["half_width"]
    console.print(
        f"{record['measured']} of {record['cells']} cells, {repeats['fewest']} to "
        f"{repeats['most']} repeats, {record['steps']} steps and {record['outliers']} outliers in "
        f"{record['seconds']:.0f} s. Half-width of the step's 95 % interval: "
        f"{widths['median']:.1%} in the median, {widths['worst']:.1%} at worst; "
        f"{record['tight_cells']} cells within {record['tolerance']:.0%}.",
        highlight=False,
    )
    failed = list(record["failed"].items())
    for cell, reason in failed[:FAILURES_SHOWN]:
        console.print(f"  [red]failed[/]: {cell}: {escape(reason)}", highlight=False)
    if len(failed) > FAILURES_SHOWN:
        console.print(f"  and {len(failed) - FAILURES_SHOWN} more (summary.json)", style="red")


def _show_speed(console: Console, speed: Mapping[str, float] | None) -> None:
    if speed is None:
        text = (
            "Times are as the clock gave them: the server did not time the machine beside its "
            "steps (its settings file: [trace] reference = true)."
        )
    else:
        text = (
            f"The machine: a fixed product took {speed['usual_ms']:.3f} ms in the median, "
            f"{speed['fast_ms']:.3f} to {speed['slow_ms']:.3f} in the middle 80 % of the visits; "
            "every step's times are divided by the one at its side."
        )
    console.print(text, highlight=False)


def _show_held_out(console: Console, held_out: Mapping[str, Any]) -> None:
    if not held_out["cells"]:
        console.print("[red]No held-out cell was measured.[/]")
        return
    at_context = held_out["median_error_at_context"]
    console.print(
        f"Held out: {held_out['cells']} cells, median error of the step "
        f"{held_out['median_error']:.1%} (aim: at most {held_out['target']:.0%}); at "
        f"{held_out['context']} context tokens, where nothing was fitted, "
        f"{'-' if at_context is None else f'{at_context:.1%}'}; "
        f"{len(held_out['outside'])} cells off by more than max(20 %, twice their half-width).",
        style="green" if held_out["reached"] else "yellow",
        highlight=False,
    )
    for cell in held_out["outside"][:FAILURES_SHOWN]:
        console.print(f"  off: {cell}", style="yellow", highlight=False)
