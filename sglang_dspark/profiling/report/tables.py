"""The numbers behind the figures as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang_dspark.profiling.calibrate.report import Report
from sglang_dspark.profiling.report.document import ABSENT, Table
from sglang_dspark.profiling.report.estimate import Estimate, Percentiles
from sglang_dspark.profiling.report.points import PointSummary

Points = Sequence[PointSummary]
POINT = ("workload", "conc.", "arm")


def shown(estimate: Estimate | None, digits: int = 1, scale: float = 1.0) -> str:
    """`12.3 [11.8, 12.9]`, without the interval where there is none."""
    if estimate is None:
        return ABSENT
    text = f"{scale * estimate.value:,.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{scale * estimate.low:,.{digits}f}, {scale * estimate.high:,.{digits}f}]"


def shown_ratio(ratio: Estimate | None) -> str:
    """With a mark where the interval leaves 1 out: ▲ faster, ▼ slower."""
    if ratio is None:
        return ABSENT
    mark = {1: " ▲", -1: " ▼", 0: ""}[side_of_one(ratio)]
    return shown(ratio, 3) + mark


def side_of_one(ratio: Estimate) -> int:
    """1 or -1 where the interval lies above or below 1; 0 where it holds 1 or is absent."""
    if ratio.low is None or ratio.high is None:
        return 0
    return (ratio.low > 1) - (ratio.high < 1)


def throughput(points: Points) -> Table:
    return Table(
        "Throughput",
        (*POINT, "tokens/s", "per-user tokens/s", "/ no speculation", "/ best fixed", "rounds",
         "requests", "errors"),
        tuple(
            (
                *_point(p),
                shown(p.tokens_per_s),
                shown(p.user_tokens_per_s),
                shown_ratio(p.vs_no_speculation),
                ABSENT
                if p.vs_best_fixed is None
                else f"{shown_ratio(p.vs_best_fixed)} ({p.best_fixed})",
                f"{p.rounds}",
                f"{p.requests:,}",
                f"{p.errors:,}",
            )
            for p in points
        ),
        "95 % bootstrap intervals over rounds. Ratios are paired within rounds; ▲ faster, ▼ slower "
        "where the interval leaves 1 out. The best fixed arm is chosen on the even rounds (or "
        "the plan's choose_rounds) and compared on the others.",
        words=3,
    )  # fmt: skip


def latency(points: Points) -> Table:
    def three(found: Percentiles | None, digits: int) -> list[str]:
        return (
            [shown(e, digits) for e in (found.p50, found.p95, found.p99)] if found else [ABSENT] * 3
        )

    return Table(
        "Latency",
        (*POINT, *(f"{w} p{n}" for w in ("TTFT ms", "TPOT ms", "e2e s") for n in (50, 95, 99))),
        tuple(
            (*_point(p), *three(p.ttft_ms, 1), *three(p.tpot_ms, 2), *three(p.e2e_s, 2))
            for p in points
        ),
        "Over the answered requests of all rounds. TPOT: per token after the first.",
        words=3,
    )  # fmt: skip


def drafting(points: Points) -> Table | None:
    """None where no arm verifies drafts."""
    drafted = [p for p in points if p.accept_length or p.sglang_accept_length or p.no_draft_share]
    columns: dict[str, Callable[[PointSummary], str]] = {
        "accept length": lambda p: shown(p.accept_length, 2),
        "SGLang's": lambda p: shown(p.sglang_accept_length, 2),
        "ceiling": lambda p: shown(p.ceiling_accept_length, 2),
        "draft_len": lambda p: shown(p.draft_len, 2),
        "no-draft steps %": lambda p: shown(p.no_draft_share, 1, 100),
        "predicted step ms": lambda p: shown(p.predicted_step_ms, 2),
        "measured step ms": lambda p: shown(p.actual_step_ms, 2),
    }
    if not drafted:
        return None
    return Table(
        "Drafting",
        (*POINT, *columns),
        tuple((*_point(p), *(cell(p) for cell in columns.values())) for p in drafted),
        "Accept length: 1 + accepted drafts / (request, step) pairs verified. SGLang's: completion "
        "tokens / verify steps, which also counts the prefill's token. Ceiling: what whole blocks "
        "would have given (cap-accept only).",
        words=3,
    )


def domains(points: Points) -> Table | None:
    """Mean draft_len by domain, of mixed workloads."""
    mixed = [p for p in points if len(p.draft_len_by_domain) > 1]
    names = tuple(sorted({d for p in mixed for d in p.draft_len_by_domain}))
    if not mixed:
        return None
    return Table(
        "Mean draft_len by domain inside mixed workloads",
        (*POINT, *names, "difference"),
        tuple(
            (
                *_point(p),
                *(
                    f"{p.draft_len_by_domain[n]:.2f}" if n in p.draft_len_by_domain else ABSENT
                    for n in names
                ),
                shown(p.draft_len_difference, 2),
            )
            for p in mixed
        ),
        "From SGLang's count per request, where a no-draft step counts as a window of 0 drafts. "
        "Difference: of the first domain to the second, paired within rounds.",
        words=3,
    )  # fmt: skip


def calibration(report: Report) -> Table:
    """ECE of every group of held-out blocks, and what the best rising map would leave of it."""
    pooled = report.groups[0]
    rows = [
        (g.name, f"{g.rounds:,}", *(f"{p.before.ece:.1%} → {p.after.ece:.1%}" for p in g.positions))
        for g in report.groups
    ]
    bound = (f"{pooled.name}, best monotone fit", f"{pooled.rounds:,}")
    rows.insert(1, (*bound, *(f"{p.monotone_ece:.1%}" for p in pooled.positions)))
    temperatures = ", ".join(f"{t:.2f}" for t in report.temperatures)
    return Table(
        "Calibration error (ECE) on held-out blocks, before → after STS",
        ("blocks of", "rounds", *(f"position {p.position}" for p in pooled.positions)),
        tuple(rows),
        f"Temperatures: {temperatures}.",
    )


def calibration_remarks(report: Report) -> Table | None:
    """Why a position keeps more error than it should; None where none does."""
    rows = tuple((p.remark,) for p in report.groups[0].positions if p.remark)
    if not rows:
        return None
    return Table("What one temperature leaves", ("position and reason",), rows, prose=True)


def _point(point: PointSummary) -> tuple[str, str, str]:
    return point.workload, f"{point.concurrency}", point.arm
