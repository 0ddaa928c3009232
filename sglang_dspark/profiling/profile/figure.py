"""`figure.png`: measured against fitted, and steps per second against verified rows."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # a file, whatever the terminal is

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis

from sglang_dspark.profiling.profile.cells import Cell, Plan
from sglang_dspark.profiling.profile.fit import TOLERATED_ERROR, Checked, pricer
from sglang_dspark.profiling.profile.run import ProfileResult

FITTED, HELD_OUT = "#4878a8", "#d1603d"


def draw(result: ProfileResult, path: Path, title: str) -> None:
    """Both panels into one PNG."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.6), layout="constrained")
    try:
        figure.suptitle(textwrap.fill(title, 160), fontsize=10)
        _draw_fit(left, result)
        _draw_speed(right, result)
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)


def _draw_fit(axes: Axes, result: ProfileResult) -> None:
    checks = result.fitted.checks
    times = [t for c in checks for t in (c.measured.step_ms, c.predicted_ms)]
    low, high = 0.9 * min(times), 1.1 * max(times)
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.fill_between(
        [low, high],
        [low * (1 - TOLERATED_ERROR), high * (1 - TOLERATED_ERROR)],
        [low * (1 + TOLERATED_ERROR), high * (1 + TOLERATED_ERROR)],
        color="0.92",
        label=f"within {TOLERATED_ERROR:.0%}",
    )
    for held_out, color, name in ((False, FITTED, "fitted"), (True, HELD_OUT, "held out")):
        error = result.fitted.median_error(held_out)
        label = f"{name}, median error {error:.1%}"
        _scatter(axes, [c for c in checks if c.held_out == held_out], color, label)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set(xlabel="measured step, ms", ylabel="step by the table, ms")
    _plain_numbers(axes.xaxis)
    _plain_numbers(axes.yaxis)
    axes.set_title("Each cell, measured (with its 95 % interval) against the table", fontsize=10)
    axes.grid(which="both", alpha=0.2)
    axes.legend(loc="upper left")


def _scatter(axes: Axes, checks: list[Checked], color: str, label: str) -> None:
    axes.errorbar(
        [c.measured.step_ms for c in checks],
        [c.predicted_ms for c in checks],
        xerr=[c.measured.half_width_ms for c in checks],
        fmt="o",
        markersize=4,
        elinewidth=0.8,
        color=color,
        alpha=0.8,
        label=label,
    )


def _draw_speed(axes: Axes, result: ProfileResult) -> None:
    """Lines: the table at one planned context. Points: what was measured near it."""
    plan, header = result.plan, result.samples.header
    price = pricer(result.fitted.table, result.measured, header.server["gamma"])
    requests = sorted({c.requests for c in plan.cells})
    colors = plt.get_cmap("viridis")
    for i, r in enumerate(requests):
        context = _shown_context(plan, r)
        cells = [c for c in plan.cells if c.requests == r and c.context == context]
        color = colors(0.9 * i / max(len(requests) - 1, 1))
        _draw_one(axes, result, _drafting(cells), price, color, f"R = {r}, C = {context}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    _plain_numbers(axes.yaxis)
    axes.set(xlabel="verified rows B", ylabel="steps per second, 1000 / T")
    axes.set_title("SPS against rows: table (lines), measured (points), no-draft (x)", fontsize=10)
    axes.grid(which="both", alpha=0.2)
    axes.legend(fontsize=8, loc="lower left")


def _draw_one(
    axes: Axes, result: ProfileResult, cells: list[Cell], price: Any, color: Any, label: str
) -> None:
    measured = {m.cell: m for m in result.measured}
    seen = [measured[c] for c in cells if c in measured]
    if not seen:
        return
    axes.plot(
        [c.rows for c in cells],
        [1e3 / price(c, seen[0].context) for c in cells],
        color=color,
        label=label,
    )
    axes.plot([m.cell.rows for m in seen], [1e3 / m.step_ms for m in seen], "o", color=color)
    plain = measured.get(Cell(cells[0].requests, cells[0].context, None))
    if plain is not None:
        axes.plot([plain.cell.rows], [1e3 / plain.step_ms], "x", color=color, markersize=8)


def _drafting(cells: list[Cell]) -> list[Cell]:
    """Cells of whole blocks by rows."""
    return sorted(
        (c for c in cells if c.budget is not None and c.width is None), key=lambda c: c.rows
    )


def _plain_numbers(axis: Axis) -> None:
    """1, 2, 5, 10, 20 ... in place of powers of ten."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")


def _shown_context(plan: Plan, requests: int) -> int:
    """The context nearest to the held-out one that was planned for so many requests."""
    planned = {c.context for c in plan.cells if c.requests == requests}
    others = planned - {plan.held_out_context} or planned
    return min(others, key=lambda c: (abs(c - plan.held_out_context), c))
