"""What a person sees of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from sglang_dspark.cli.progress import StageProgress
from sglang_dspark.profiling.report.estimate import Estimate
from sglang_dspark.profiling.report.points import PointSummary
from sglang_dspark.profiling.sweep.run import SweepJob
from sglang_dspark.profiling.sweep.schedule import Round


class SweepProgress(StageProgress):
    """The `Progress` of a sweep."""

    def round_done(self, round_: Round, speeds: Mapping[str, float]) -> None:
        cells = "  ".join(f"{arm} {speed:.0f}" for arm, speed in speeds.items())
        self.console.print(
            f"  round {round_.number + 1:2d} {round_.workload} x{round_.concurrency}: {cells}",
            highlight=False,
        )


def show_sweep(console: Console, job: SweepJob) -> None:
    plan = job.plan
    console.print(
        f"[bold]sglang-dspark sweep[/bold]: target {job.target}, draft {job.draft}\n"
        f"arms: {', '.join(a.name for a in plan.arms)}\n"
        f"workloads: {', '.join(w.name for w in plan.workloads)}; "
        f"concurrency {', '.join(map(str, plan.concurrency))}; "
        f"{plan.rounds} rounds{f', {plan.repeats} repeats' if plan.repeats > 1 else ''}: "
        f"{plan.turns()} turns\n"
        f"sampling: {plan.sampling_of(plan.workloads[0])}; every server with "
        f"--max-running-requests {plan.most_requests} {' '.join(plan.server_flags)}\n"
        f"results: {job.out}",
        highlight=False,
        markup=True,
    )


def show_points(console: Console, points: Sequence[PointSummary]) -> None:
    """One line per workload, concurrency and arm."""
    table = Table(title="Paired ratios with 95 % intervals; accept length as the paper counts it")
    columns = ("workload", "x", "arm", "tokens/s", "/ no speculation", "/ best fixed")
    for name in (*columns, "TPOT ms", "accept", "draft_len", "no-draft", "errors"):
        table.add_column(name, justify="left" if name in ("workload", "arm") else "right")
    before: tuple[str, int] | None = None
    for point in points:
        place = (point.workload, point.concurrency)
        if before not in (None, place):
            table.add_section()
        table.add_row(*_cells(point, first=before != place))
        before = place
    console.print(table)


def _cells(point: PointSummary, *, first: bool) -> list[str]:
    best = _interval(point.vs_best_fixed)
    return [
        point.workload if first else "",
        str(point.concurrency) if first else "",
        point.arm,
        f"{point.tokens_per_s.value:.1f}",
        _interval(point.vs_no_speculation),
        f"{best} {point.best_fixed}" if point.best_fixed else "",
        "" if point.tpot_ms is None else f"{point.tpot_ms.p50.value:.1f}",
        _number(point.accept_length),
        _number(point.draft_len),
        "" if point.no_draft_share is None else f"{point.no_draft_share.value:.0%}",
        f"{point.errors} of {point.requests}" if point.errors else "",
    ]


def _interval(ratio: Estimate | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f}..{ratio.high:.2f})"


def _number(value: Estimate | None) -> str:
    return "" if value is None else f"{value.value:.2f}"
