"""Figures over the load: the frontier (paper, figure 7), throughput and draft_len (8), ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sglang_dspark.profiling.report.estimate import Estimate
from sglang_dspark.profiling.report.points import PointSummary
from sglang_dspark.profiling.report.style import (
    ArmStyle,
    arms_of_error,
    concurrency_axis,
    legend_above,
    outlined,
    panels,
    ratio_axis,
    styled,
    with_error_bars,
)

Points = Sequence[PointSummary]
Styles = Mapping[str, ArmStyle]
Ratio = Callable[[PointSummary], Estimate | None]
CONCURRENCY = "requests at a time (concurrency)"


def frontier(points: Points, styles: Styles, numbered: str) -> Figure:
    """Total throughput against per-user tokens/s; the points of `numbered` say their load."""
    with styled():
        workloads = _unique(p.workload for p in points)
        figure, axes = panels(workloads, height=3.9)
        for axis, workload in zip(axes[0], workloads, strict=True):
            for arm, curve in _curves(points, workload, lambda p: p.user_tokens_per_s):
                users = [p.user_tokens_per_s for p in curve if p.user_tokens_per_s]
                totals = [p.tokens_per_s for p in curve]
                x = [u.value for u in users]
                axis.errorbar(
                    x,
                    [t.value for t in totals],
                    xerr=arms_of_error(users),
                    yerr=arms_of_error(totals),
                    label=arm,
                    elinewidth=0.7,
                    **styles[arm].options(),
                )
                if arm == numbered:
                    _number_the_load(axis, curve, x, styles[arm].colour)
            axis.set(xlabel="per-user tokens/s", ylabel="total tokens/s")
            axis.set_xlim(left=0)
            axis.set_ylim(bottom=0)
        legend_above(figure, axes)
        return figure


def _number_the_load(axis: Axes, curve: Points, x: Sequence[float], colour: str) -> None:
    for point, at in zip(curve, x, strict=True):
        axis.annotate(
            f"{point.concurrency}",
            (at, point.tokens_per_s.value),
            textcoords="offset points",
            xytext=(7, 6),
            color=colour,
            fontsize=9,
            fontweight="bold",
            **outlined(),
        )


def load(points: Points, styles: Styles) -> Figure:
    """Top: total throughput against concurrency; bottom: mean draft_len."""
    with styled():
        workloads = _unique(p.workload for p in points)
        figure, axes = panels(workloads, rows_each=2, height=2.9)
        for column, workload in zip(axes.T, workloads, strict=True):
            top, bottom = column
            for arm, curve in _curves(points, workload, lambda p: p.tokens_per_s):
                x = [p.concurrency for p in curve]
                with_error_bars(top, x, [p.tokens_per_s for p in curve], styles[arm], arm)
            for arm, curve in _curves(points, workload, lambda p: p.draft_len):
                x = [p.concurrency for p in curve]
                lens = [p.draft_len for p in curve if p.draft_len]
                with_error_bars(bottom, x, lens, styles[arm], arm)
            for axis in column:
                concurrency_axis(axis, _unique(p.concurrency for p in points))
                axis.set_ylim(bottom=0)
            top.set_ylabel("total tokens/s")
            bottom.set(xlabel=CONCURRENCY, ylabel="mean draft_len (drafts)")
            if not bottom.lines:
                bottom.text(
                    0.5, 0.5, "no arm reports draft_len", transform=bottom.transAxes, ha="center"
                )
        figure.align_ylabels(axes)
        legend_above(figure, axes)
        return figure


def ratios(points: Points, styles: Styles) -> Figure:
    """Each arm / no speculation; below it, compact / the best fixed arm where that is known."""
    with styled():
        workloads = _unique(p.workload for p in points)
        rows: list[tuple[str, Ratio]] = [("no speculation", lambda p: p.vs_no_speculation)]
        if any(p.vs_best_fixed for p in points):
            rows.append(("best fixed arm", lambda p: p.vs_best_fixed))
        figure, axes = panels(workloads, rows_each=len(rows), height=3.1)
        for line, (against, ratio) in zip(axes, rows, strict=True):
            foot = 0.22 if against == "best fixed arm" else 0.06
            for axis, workload in zip(line, workloads, strict=True):
                here = [p for p in points if p.workload == workload]
                _dodged(axis, here, styles, ratio)
                ratio_axis(axis, *_span([r for p in points if (r := ratio(p))], foot))
                axis.set_ylabel(f"tokens/s / {against}")
            if foot > 0.1:
                for axis, workload in zip(line, workloads, strict=True):
                    _name_the_best(axis, [p for p in points if p.workload == workload])
        for axis in axes[-1]:
            axis.set_xlabel(CONCURRENCY)
        legend_above(figure, axes)
        return figure


def _dodged(axis: Axes, points: Points, styles: Styles, ratio: Ratio) -> None:
    """One group of points per concurrency, side by side so that intervals do not overlap."""
    groups = _unique(p.concurrency for p in points)
    arms = _unique(p.arm for p in points if ratio(p))
    step = 0.72 / max(len(arms), 1)
    for i, arm in enumerate(arms):
        found = [
            (groups.index(p.concurrency), r) for p in points if p.arm == arm and (r := ratio(p))
        ]
        axis.errorbar(
            [group + (i - (len(arms) - 1) / 2) * step for group, _ in found],
            [r.value for _, r in found],
            yerr=arms_of_error([r for _, r in found]),
            label=arm,
            capsize=2.5,
            elinewidth=1.2,
            **{**styles[arm].options(), "linestyle": "none"},
        )
    for place in range(len(groups) - 1):
        axis.axvline(place + 0.5, color="#dddddd", linewidth=0.8)
    axis.grid(axis="x", visible=False)
    axis.set_xticks(range(len(groups)), [str(c) for c in groups])
    axis.set_xlim(-0.5, len(groups) - 0.5)


def _span(found: Sequence[Estimate], foot: float) -> tuple[float, float]:
    """Limits of an axis that holds all intervals and 1, with a share of it free at the foot."""
    low = min(1.0, *(e.value if e.low is None else e.low for e in found))
    high = max(1.0, *(e.value if e.high is None else e.high for e in found))
    room = max(high / low, 1.1)
    return low / room**foot / 1.01, high * room**0.06 * 1.01


def _name_the_best(axis: Axes, points: Points) -> None:
    """At the foot of every group: which fixed arm was the best there."""
    groups = _unique(p.concurrency for p in points)
    named: dict[int, str] = {p.concurrency: p.best_fixed for p in points if p.best_fixed}
    for concurrency, arm in named.items():
        axis.text(
            groups.index(concurrency),
            0.02,
            f"best fixed:\n{arm}",
            transform=axis.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8,
            color="#444444",
            **outlined(),
        )


def _curves(
    points: Points, workload: str, needed: Callable[[PointSummary], Any]
) -> list[tuple[str, list[PointSummary]]]:
    """(arm, its points over concurrency) of a workload, of points that have what is needed."""
    here = [p for p in points if p.workload == workload and needed(p) is not None]
    return [(arm, [p for p in here if p.arm == arm]) for arm in _unique(p.arm for p in here)]


def _unique(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
