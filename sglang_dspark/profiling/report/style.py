"""How every figure looks: one colour and marker per arm, small multiples, one way of saving."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sglang_dspark.profiling.report.estimate import Estimate
from sglang_dspark.profiling.report.rounds import CAP_ACCEPT, COMPACT, NO_SPECULATION, STATIC

# Okabe and Ito: told apart with any common colour vision. The static arms share one hue, light
# to dark as their windows grow.
GREYS = ("#555555", "#999999", "#bbbbbb")
VERMILLION, PURPLE = ("#d55e00", "#8c2d04", "#f0a06a"), ("#cc79a7", "#88466f")
OTHERS = ("#009e73", "#e69f00", "#56b4e9", "#b8a000")
ACCEPTED, REJECTED, RATE = "#56b4e9", "#d9d9d9", "#d55e00"
BEFORE, AFTER = "#e69f00", "#0072b2"
RC: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
}
DPI = 160
# Roundest first: 1, then steps of a factor, of 0.2, of 0.1, of 0.02.
RATIO_TICKS = (
    *(1.0, 0.5, 2.0, 0.25, 4.0, 0.1, 10.0, 0.75, 1.5, 3.0),
    *(0.6, 0.8, 1.2, 1.4, 1.6, 1.8, 2.5, 0.4, 0.3, 0.2, 5.0, 7.0),
    *(0.9, 1.1, 1.3, 0.7, 0.95, 1.05, 0.85, 1.15, 0.98, 1.02, 0.96, 0.94, 1.04, 1.06),
)


def styled() -> AbstractContextManager[None]:
    """Draw inside this, so that the caller's matplotlib settings neither matter nor change."""
    return matplotlib.rc_context(RC)


@dataclass(frozen=True, slots=True)
class ArmStyle:
    colour: str
    marker: str
    line: str  # matplotlib's line style
    width: float = 1.5

    def options(self) -> dict[str, Any]:
        """For `Axes.plot` and `Axes.errorbar`."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "linewidth": self.width,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
        }


def arm_styles(kinds: Mapping[str, str]) -> dict[str, ArmStyle]:
    """By arm, the same in every figure. kinds: what each arm is, in the order of the header."""
    members: dict[str, list[str]] = {}
    for arm, kind in kinds.items():
        members.setdefault(kind, []).append(arm)
    blues = matplotlib.colormaps["Blues"](np.linspace(0.42, 0.95, len(members.get(STATIC, []))))
    looks: dict[str, tuple[Sequence[str], str, str, float]] = {
        NO_SPECULATION: (GREYS, "s", "--", 1.8),
        STATIC: ([to_hex(c) for c in blues], "^", "-", 1.3),
        COMPACT: (VERMILLION, "o", "-", 2.4),
        CAP_ACCEPT: (PURPLE, "D", ":", 1.5),
    }
    styles: dict[str, ArmStyle] = {}
    others = [arm for arm, kind in kinds.items() if kind not in looks]
    for kind, (colours, marker, line, width) in looks.items():
        for i, arm in enumerate(members.get(kind, [])):
            styles[arm] = ArmStyle(colours[i % len(colours)], marker, line, width)
    for i, arm in enumerate(others):
        styles[arm] = ArmStyle(OTHERS[i % len(OTHERS)], "vPX*"[i // len(OTHERS) % 4], "-.")
    return styles


def panels(
    names: Sequence[str],
    *,
    rows_each: int = 1,
    width: float = 4.4,
    height: float = 3.5,
    columns: int = 3,
) -> tuple[Figure, np.ndarray]:
    """A figure with one column of `rows_each` panels per name: (figure, axes [rows_each, names]).

    More than `columns` names with one row each are broken into lines; the axes stay [1, names].
    """
    columns = len(names) if rows_each > 1 else min(len(names), columns)
    lines = rows_each if rows_each > 1 else -(-len(names) // columns)
    figure = Figure(figsize=(max(width * columns, 5.6), height * lines + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(lines, columns, squeeze=False)
    axes = np.asarray(grid)
    if rows_each == 1:
        for spare in axes.flat[len(names) :]:
            spare.set_visible(False)
        axes = axes.reshape(1, -1)[:, : len(names)]
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name)
    return figure, axes


def legend_above(figure: Figure, axes: np.ndarray) -> None:
    """One legend for all panels, each entry once, in as few rows as the width allows."""
    entries: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            # Of an error bar the legend shows the curve alone.
            entries.setdefault(
                label, handle[0] if isinstance(handle, ErrorbarContainer) else handle
            )
    inches = sum(0.54 + 0.073 * len(label) for label in entries)
    rows = math.ceil(inches / (figure.get_figwidth() - 0.2))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside upper center",
        ncols=math.ceil(len(entries) / rows),
        handlelength=2.0,
        columnspacing=1.2,
    )


def outlined() -> dict[str, Any]:
    """For text that lies on top of something."""
    return {"path_effects": [withStroke(linewidth=2.6, foreground="white")]}


def with_error_bars(
    axis: Axes, x: Sequence[float], estimates: Sequence[Estimate], look: ArmStyle, label: str
) -> None:
    """A curve with intervals where there are any."""
    axis.errorbar(
        x,
        [e.value for e in estimates],
        yerr=arms_of_error(estimates),
        label=label,
        capsize=2.5,
        elinewidth=1.0,
        **look.options(),
    )


def arms_of_error(estimates: Sequence[Estimate]) -> np.ndarray:
    """[2, n] distances to the lower and upper end of each interval; 0 where there is none.

    A percentile interval need not contain its estimate; then that side is 0 too.
    """
    ends = [
        (0.0, 0.0) if e.low is None or e.high is None else (e.value - e.low, e.high - e.value)
        for e in estimates
    ]
    sides = np.array(ends, dtype=float).reshape(-1, 2).T
    return np.asarray(np.maximum(sides, 0.0))


def concurrency_axis(axis: Axes, concurrencies: Sequence[int]) -> None:
    """log2 with the measured values as ticks."""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(list(concurrencies)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlim(min(concurrencies) / 1.25, max(concurrencies) * 1.25)


def ratio_axis(axis: Axes, low: float, high: float) -> None:
    """A logarithmic y axis of ratios from low to high, with 1 marked."""
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(FixedLocator(_ratio_ticks(low, high)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.axhline(1.0, color="#222222", linewidth=1.1, zorder=1)


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Round ratios, the roundest first, none too near to another."""
    apart = math.log(high / low) / 11
    chosen: list[float] = []
    for tick in RATIO_TICKS:
        near = any(abs(math.log(tick / other)) < apart for other in chosen)
        if low <= tick <= high and not near:
            chosen.append(tick)
    return sorted(chosen)


def save(figure: Figure, path: Path) -> None:
    """As PNG on white."""
    figure.savefig(path, dpi=DPI, facecolor="white", metadata={"Software": None})
