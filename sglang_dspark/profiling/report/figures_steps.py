"""Step time: what the cost table predicted against what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sglang_dspark.profiling.report.points import PointSummary
from sglang_dspark.profiling.report.profile import ProfileSummary
from sglang_dspark.profiling.report.style import AFTER, BEFORE, ArmStyle, panels, styled

MARKERS = "osD^vPX*"
Pairs = npt.NDArray[np.float64]  # [n, 2] predicted and measured ms


def point_pairs(points: Sequence[PointSummary]) -> Pairs:
    """Means of the points with a prediction."""
    pairs = [
        (p.predicted_step_ms.value, p.actual_step_ms.value)
        for p in points
        if p.predicted_step_ms and p.actual_step_ms
    ]
    return np.array(pairs, dtype=float).reshape(-1, 2)


def profile_pairs(profile: ProfileSummary | None, *, held_out: bool) -> Pairs:
    cells = [] if profile is None else [c for c in profile.details if c.held_out == held_out]
    return np.array([(c.predicted_ms, c.step_ms) for c in cells], dtype=float).reshape(-1, 2)


def median_error(pairs: Pairs) -> float:
    """Median of |predicted - measured| / measured."""
    return float(np.median(np.abs(pairs[:, 0] / pairs[:, 1] - 1)))


def step_time(
    points: Sequence[PointSummary],
    styles: Mapping[str, ArmStyle],
    traced: Mapping[str, Pairs],
    profile: ProfileSummary | None,
) -> Figure:
    """A panel for the cells of the profile, the sweep's points, and the steps of every trace."""
    with styled():
        priced = [p for p in points if p.predicted_step_ms and p.actual_step_ms]
        names = ["cells of the profile"] if profile else []
        names += ["means of the sweep's points"] if priced else []
        names += [f"every step of {name}" for name in traced]
        figure, axes = panels(names, width=4.2, height=4.0, columns=2 if len(names) == 4 else 3)
        left = list(axes[0])
        if profile:
            _profile_panel(left.pop(0), profile)
        if priced:
            _points_panel(left.pop(0), priced, styles)
        for axis, pairs in zip(left, traced.values(), strict=True):
            axis.scatter(pairs[:, 1], pairs[:, 0], s=9, alpha=0.3, color=AFTER, linewidths=0)
            _frame(axis, pairs)
        return figure


def _profile_panel(axis: Axes, profile: ProfileSummary) -> None:
    every = []
    for held_out, colour, marker, label in (
        (False, AFTER, "o", "fitted"),
        (True, BEFORE, "s", "held out"),
    ):
        pairs = profile_pairs(profile, held_out=held_out)
        every.append(pairs)
        axis.scatter(
            pairs[:, 1],
            pairs[:, 0],
            s=24,
            color=colour,
            marker=marker,
            edgecolors="white",
            linewidths=0.4,
            label=label,
        )
    _frame(axis, np.concatenate(every))
    axis.legend(fontsize=8, loc="upper left", handletextpad=0.2)


def _points_panel(
    axis: Axes, priced: Sequence[PointSummary], styles: Mapping[str, ArmStyle]
) -> None:
    """Colour: arm; marker: workload."""
    workloads = list(dict.fromkeys(p.workload for p in priced))
    marks = {w: MARKERS[i % len(MARKERS)] for i, w in enumerate(workloads)}
    for point in priced:
        x, y = point_pairs([point])[0, ::-1]
        colour, mark = styles[point.arm].colour, marks[point.workload]
        axis.scatter(x, y, s=34, color=colour, marker=mark, edgecolors="white", linewidths=0.5)
    for arm in dict.fromkeys(p.arm for p in priced):
        axis.scatter([], [], s=34, color=styles[arm].colour, label=arm)
    for workload, mark in marks.items():
        axis.scatter([], [], s=34, color="white", edgecolors="#222222", marker=mark, label=workload)
    _frame(axis, point_pairs(priced))
    axis.legend(fontsize=8, loc="upper left", handletextpad=0.2)


def _frame(axis: Axes, pairs: Pairs) -> None:
    """Equal logarithmic axes around the bulk of the pairs, equality and 10 % around it."""
    low, high = (float(v) for v in np.percentile(pairs, (0.5, 99.5)))
    ends = np.array([low / 1.3, high * 1.3])
    axis.fill_between(ends, 0.9 * ends, 1.1 * ends, color="#ebebeb", zorder=0)
    axis.plot(ends, ends, color="#222222", linewidth=1.0, zorder=1)
    outside = int(((pairs < ends[0]) | (pairs > ends[1])).any(axis=1).sum())
    beyond = f", {outside:,} beyond the frame" if outside else ""
    text = f"median error {median_error(pairs):.1%}\n{len(pairs):,} compared{beyond}"
    axis.text(0.97, 0.03, text, transform=axis.transAxes, ha="right", va="bottom", fontsize=8.5)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axis.set(xlabel="measured step time (ms)", ylabel="predicted step time (ms)")
    steps = (1, 2, 5) if high / low > 12 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [s * 10.0**e for e in range(-3, 7) for s in steps if ends[0] <= s * 10.0**e <= ends[1]]
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(FixedLocator(ticks))
        side.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        side.set_minor_locator(NullLocator())
