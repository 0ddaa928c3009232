"""What a person sees of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from sglang_dspark.cli.progress import StageProgress
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
    table = Table(title="tokens/s in all; ratios are paired, with 95 % intervals")
    for name in (
        "workload",
        "conc.",
        "arm",
        "tokens/s",
        "/ no-spec.",
        "TPOT ms",
        "accept",
        "draft_len",
    ):
        table.add_column(name, justify="left" if name in ("workload", "arm") else "right")
    before = None
    for point in points:
        place = (point.workload, point.concurrency)
        if before not in (None, place):
            table.add_section()
        table.add_row(*_cells(point, first=before != place))
        before = place
    console.print(table)


def _cells(point: PointSummary, *, first: bool) -> list[str]:
    return [point.workload if first else "", str(point.concurrency) if first else "", point.arm]
