"""`reliability.png`: predicted against observed survival, per position, before and after."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sglang_dspark.profiling.calibrate.report import Group, Position, Report, Score

BEFORE, AFTER = "#c2571a", "#1b6ca8"
COLUMNS = 4
PANEL_INCHES = 2.7
LARGEST_DOT = 110.0  # points squared, for a bin with all blocks
LEAST_IN_LINE = 30  # blocks of a bin


def draw_reliability(report: Report, path: Path) -> None:
    """The pooled held-out half; the area of a dot is the share of blocks in its bin, and bins of
    few blocks are left out of the line."""
    pooled = report.groups[0]
    columns = min(COLUMNS, report.gamma + 1)
    rows = math.ceil((report.gamma + 1) / columns)
    figure = Figure(
        (PANEL_INCHES * columns, (PANEL_INCHES + 0.4) * rows + 0.6), layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, position in zip(panels, pooled.positions, strict=False):
        _draw_position(panel, position, pooled.rounds)
    _draw_key(panels[report.gamma], pooled)
    for panel in panels[report.gamma + 1 :]:
        panel.set_axis_off()
    figure.supxlabel("predicted survival of the prefix", fontsize=10)
    figure.supylabel("share of blocks whose prefix was accepted", fontsize=10)
    figure.suptitle(
        f"Calibration on {pooled.rounds:,} held-out blocks of {', '.join(report.domains)}",
        fontsize=11,
    )
    figure.savefig(path, dpi=150)


def _draw_position(panel: Axes, position: Position, rounds: int) -> None:
    panel.plot((0, 1), (0, 1), color="0.6", linewidth=0.8, linestyle=(0, (4, 3)))
    _draw_curve(panel, position.before, rounds, BEFORE)
    _draw_curve(panel, position.after, rounds, AFTER)
    panel.set_title(
        f"position {position.position}, T = {position.temperature:.2f}\n"
        f"ECE {position.before.ece:.1%} to {position.after.ece:.1%}",
        fontsize=9,
    )
    panel.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    panel.set_box_aspect(1)
    panel.set_xticks((0, 0.5, 1))
    panel.set_yticks((0, 0.5, 1))
    panel.tick_params(labelsize=8)
    panel.grid(color="0.92", linewidth=0.6)
    panel.set_axisbelow(True)


def _draw_curve(panel: Axes, score: Score, rounds: int, colour: str) -> None:
    """Dots for all bins; a line through those whose share is more than chance."""
    usual = [bin_ for bin_ in score.reliability if bin_[2] >= LEAST_IN_LINE]
    panel.plot([b[0] for b in usual], [b[1] for b in usual], color=colour, linewidth=1.2)
    predicted, observed, blocks = zip(*score.reliability, strict=True)
    sizes = [4 + LARGEST_DOT * n / rounds for n in blocks]
    panel.scatter(predicted, observed, s=sizes, color=colour, alpha=0.65, linewidths=0)


def _draw_key(panel: Axes, pooled: Group) -> None:
    """What the colours mean, where a panel is left over."""
    panel.set_axis_off()
    panel.plot([], [], color=BEFORE, marker="o", label="before (T = 1)")
    panel.plot([], [], color=AFTER, marker="o", label="after STS")
    panel.plot([], [], color="0.6", linestyle=(0, (4, 3)), label="perfect")
    panel.legend(loc="center", frameon=False, fontsize=9)
