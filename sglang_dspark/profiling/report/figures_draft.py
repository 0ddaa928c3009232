"""Figures about the draft: acceptance by position (paper, figure 2), threshold sweep (5),
reliability (6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sglang_dspark.profiling.calibrate.report import Position, Score
from sglang_dspark.profiling.report.acceptance import Acceptance
from sglang_dspark.profiling.report.style import (
    ACCEPTED,
    AFTER,
    BEFORE,
    RATE,
    REJECTED,
    ArmStyle,
    legend_above,
    outlined,
    panels,
    styled,
    with_error_bars,
)
from sglang_dspark.profiling.report.trace import Threshold


def acceptance(found: Sequence[Acceptance], styles: Mapping[str, ArmStyle]) -> Figure:
    """P(draft k accepted | the ones before it accepted) by k, a panel per workload."""
    with styled():
        figure, axes = panels([a.workload for a in found], height=3.1)
        for axis, one in zip(axes[0], found, strict=True):
            known = [(k, e) for k, e in enumerate(one.by_position, 1) if e is not None]
            look = styles[one.arm]
            x = [k for k, _ in known]
            with_error_bars(axis, x, [e for _, e in known], look, one.arm)
            for k, estimate in known:
                axis.annotate(
                    f"{estimate.value:.2f}",
                    (k, estimate.value),
                    textcoords="offset points",
                    xytext=(0, 9),
                    ha="center",
                    fontsize=8.5,
                )
            axis.set(
                xlabel="draft position k",
                ylabel="P(k accepted | k - 1 accepted)",
                xlim=(0.5, len(one.by_position) + 0.5),
                ylim=(0, 1.08),
            )
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_above(figure, axes)
        return figure


def threshold(sweeps: Mapping[str, Sequence[Threshold]]) -> Figure:
    """Bars: drafts verified by threshold, accepted and rejected; line: acceptance rate."""
    with styled():
        figure, axes = panels(list(sweeps), height=3.3)
        most = max(t.accepted + t.rejected for sweep in sweeps.values() for t in sweep)
        for axis, sweep in zip(axes[0], sweeps.values(), strict=True):
            _threshold_panel(axis, sweep)
            axis.set_ylim(0, 1.12 * most)
        legend_above(figure, axes)
        return figure


def _threshold_panel(axis: Axes, sweep: Sequence[Threshold]) -> None:
    x = [t.threshold for t in sweep]
    accepted = [t.accepted for t in sweep]
    axis.bar(x, accepted, 0.07, color=ACCEPTED, label="accepted")
    rejected = [t.rejected for t in sweep]
    axis.bar(
        x, rejected, 0.07, bottom=accepted, color=REJECTED, edgecolor="#999999", hatch="///",
        linewidth=0.4, label="rejected",
    )  # fmt: skip
    axis.set(
        xlabel="confidence threshold (survival)", ylabel="drafts verified per request and step"
    )
    axis.set_xticks(x)
    axis.grid(axis="x", visible=False)
    rate = axis.twinx()
    rate.grid(visible=False)
    rate.spines["right"].set_visible(True)
    known = [(t.threshold, t.accept_rate) for t in sweep if t.accept_rate is not None]
    xs, ys = [k for k, _ in known], [r for _, r in known]
    rate.plot(xs, ys, color=RATE, marker="o", markeredgecolor="white")
    axis.plot(
        [], [], color=RATE, marker="o", markeredgecolor="white", label="acceptance rate (right)"
    )
    for i in {0, len(known) - 1} if known else ():
        rate.annotate(
            f"{ys[i]:.0%}", (xs[i], ys[i]), textcoords="offset points", xytext=(0, 7),
            ha="center", color=RATE, fontweight="bold", fontsize=9,
            **outlined(),
        )  # fmt: skip
    rate.set_ylim(0, 1.12)
    rate.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    rate.set_ylabel("acceptance rate (accepted / verified)", color=RATE)
    rate.tick_params(axis="y", colors=RATE)
    rate.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def reliability(positions: Sequence[Position]) -> Figure:
    """Predicted against observed survival per position, before and after STS."""
    with styled():
        names = [f"position {p.position}" for p in positions]
        figure, axes = panels(names, width=3.0, height=2.95, columns=4)
        for axis, position in zip(axes[0], positions, strict=True):
            axis.plot([0, 1], [0, 1], color="#222222", linewidth=1.0, label="perfect")
            _reliability_curve(axis, position.before, BEFORE, "s", "before STS")
            _reliability_curve(axis, position.after, AFTER, "o", "after STS")
            axis.text(
                0.97, 0.04, f"ECE {position.before.ece:.1%} → {position.after.ece:.1%}",
                transform=axis.transAxes, ha="right", va="bottom", fontsize=8.5,
            )  # fmt: skip
            axis.set(
                xlabel="predicted survival", ylabel="share accepted", xlim=(-0.02, 1.02),
                ylim=(-0.02, 1.02),
                aspect="equal",
            )  # fmt: skip
        legend_above(figure, axes)
        return figure


def _reliability_curve(axis: Axes, score: Score, colour: str, marker: str, label: str) -> None:
    """A line through the bins; the area of a marker grows with the blocks in its bin."""
    predicted, observed, blocks = zip(*score.reliability, strict=True)
    axis.plot(
        predicted,
        observed,
        color=colour,
        linewidth=1.2,
        marker=marker,
        ms=4,
        alpha=0.6,
        label=label,
    )
    sizes = [12 + 90 * n / max(blocks) for n in blocks]
    axis.scatter(
        predicted, observed, s=sizes, color=colour, marker=marker, edgecolors="white",
        linewidths=0.6, zorder=3,
    )  # fmt: skip
