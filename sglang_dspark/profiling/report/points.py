"""The numbers of every (workload, concurrency, arm) of a sweep, with their intervals.

Accept length, draft_len and the rest are formed as the paper's terms say: sums over sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sglang_dspark.profiling.report.estimate import (
    Estimate,
    Percentiles,
    percentiles,
    ratio_of_sums,
)
from sglang_dspark.profiling.report.rounds import (
    COMPACT,
    ArmKinds,
    Rounds,
    against_best_fixed,
    speed_ratio,
    sums,
    turns_by_point,
)
from sglang_dspark.profiling.results import Header, RequestRecord, Results, WorkerRecord
from sglang_dspark.profiling.sweep.choice import FIXED


@dataclass(frozen=True, slots=True)
class PointSummary:
    """One arm at one workload and concurrency; None where a number has no meaning there."""

    workload: str
    concurrency: int
    arm: str
    rounds: int
    requests: int  # sent
    errors: int  # of them
    tokens_per_s: Estimate  # of the whole server
    user_tokens_per_s: Estimate | None  # mean over requests of tokens / seconds
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None  # per token after the first
    e2e_s: Percentiles | None
    accept_length: Estimate | None  # 1 + accepted drafts / (request, step) pairs verified
    sglang_accept_length: Estimate | None  # tokens / spec_verify_ct
    ceiling_accept_length: Estimate | None  # of whole blocks; cap-accept only
    draft_len: Estimate | None  # drafts verified per (request, step) pair
    no_draft_share: Estimate | None  # of decode steps
    predicted_step_ms: Estimate | None
    actual_step_ms: Estimate | None  # of the same steps
    draft_len_by_domain: dict[str, float]  # mean draft_len, of mixed workloads
    draft_len_difference: Estimate | None  # first by name minus second, paired
    vs_no_speculation: Estimate | None  # paired ratio of tokens/s
    vs_no_speculation_by_repeat: tuple[Estimate | None, ...]  # where the plan repeats points
    best_fixed: str | None  # chosen on some of the rounds (sweep/choice.py); compact arms only
    vs_best_fixed: Estimate | None  # paired ratio of tokens/s on the others


def summarize_points(results: Results) -> list[PointSummary]:
    """Every point that has turns: by workload, then concurrency, then arm.

    Raises:
        ReportError: the file contradicts itself (see `rounds.turns_by_point`).
    """
    return [
        _summarize(workload, concurrency, arm, arms, results.header)
        for (workload, concurrency), arms in turns_by_point(results).items()
        for arm in arms
    ]


def as_json_record(point: PointSummary) -> dict[str, Any]:
    """Plain JSON: no record classes, and None where a number is not finite."""
    record: dict[str, Any] = _plain(asdict(point))
    return record


def _summarize(
    workload: str, concurrency: int, arm: str, arms: dict[str, Rounds], header: Header
) -> PointSummary:
    kinds, rounds = ArmKinds.of(header), arms[arm]
    sent = [turn.requests for turn in rounds.values()]
    answered = [[r for r in requests if r.error is None] for requests in sent]
    workers = [turn.worker for turn in rounds.values() if turn.worker is not None]
    speed = ratio_of_sums(*sums(rounds))
    assert speed is not None  # every turn took time
    control = arms.get(kinds.control or "") if arm != kinds.control else None
    is_compact = kinds.kinds[arm] == COMPACT
    fixed = kinds.of_kind(*FIXED)
    best = against_best_fixed(arms, arm, fixed, header.plan) if is_compact else None
    return PointSummary(
        workload=workload,
        concurrency=concurrency,
        arm=arm,
        rounds=len(rounds),
        requests=sum(map(len, sent)),
        errors=sum(map(len, sent)) - sum(map(len, answered)),
        tokens_per_s=speed,
        user_tokens_per_s=_user_tokens_per_s(answered),
        ttft_ms=_percentiles(answered, _ttft_ms),
        tpot_ms=_percentiles(answered, _tpot_ms),
        e2e_s=_percentiles(answered, lambda r: r.seconds),
        sglang_accept_length=_sglang_accept_length(answered),
        draft_len_by_domain=_mean_by_domain(rounds),
        draft_len_difference=_difference_of_domains(rounds),
        vs_no_speculation=None if control is None else speed_ratio(rounds, control),
        vs_no_speculation_by_repeat=_by_repeat(rounds, control),
        best_fixed=None if best is None else best.arm,
        vs_best_fixed=None if best is None else best.ratio,
        **_worker_numbers(workers),
    )


def _worker_numbers(workers: list[WorkerRecord]) -> dict[str, Estimate | None]:
    def ratio(over: str, under: str, plus: float = 0.0) -> Estimate | None:
        return ratio_of_sums(
            [getattr(w, over) for w in workers], [getattr(w, under) for w in workers], plus=plus
        )

    return {
        "accept_length": ratio("accepted_drafts", "verified_requests", 1.0),
        "ceiling_accept_length": ratio("ceiling_drafts", "ceiling_requests", 1.0),
        "draft_len": ratio("verified_drafts", "verified_requests"),
        "no_draft_share": ratio("no_draft_steps", "steps"),
        "predicted_step_ms": ratio("predicted_ms", "priced_steps"),
        "actual_step_ms": ratio("actual_ms", "priced_steps"),
    }


def _by_repeat(rounds: Rounds, control: Rounds | None) -> tuple[Estimate | None, ...]:
    repeats = sorted({repeat for repeat, _ in rounds})
    if control is None or len(repeats) < 2:
        return ()
    return tuple(speed_ratio(rounds, control, [k for k in rounds if k[0] == r]) for r in repeats)


def _user_tokens_per_s(answered: list[list[RequestRecord]]) -> Estimate | None:
    rates = [sum(r.tokens / r.seconds for r in rs if r.seconds > 0) for rs in answered]
    return ratio_of_sums(rates, [sum(r.seconds > 0 for r in rs) for rs in answered])


def _sglang_accept_length(answered: list[list[RequestRecord]]) -> Estimate | None:
    counted = [[r for r in requests if r.spec_verify_ct] for requests in answered]
    return ratio_of_sums(
        [sum(r.tokens for r in rs) for rs in counted],
        [sum(r.spec_verify_ct or 0 for r in rs) for rs in counted],
    )


def _percentiles(
    answered: list[list[RequestRecord]], number: Callable[[RequestRecord], float | None]
) -> Percentiles | None:
    return percentiles([[v for r in rs if (v := number(r)) is not None] for rs in answered])


def _ttft_ms(request: RequestRecord) -> float | None:
    return None if request.first_token_s is None else 1000 * request.first_token_s


def _tpot_ms(request: RequestRecord) -> float | None:
    if request.first_token_s is None or request.tokens < 2:
        return None
    return 1000 * (request.seconds - request.first_token_s) / (request.tokens - 1)


def _mean_by_domain(rounds: Rounds) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for turn in rounds.values():
        for domain, draft_len in turn.draft_lens_by_domain.items():
            found.setdefault(domain, []).append(draft_len)
    return {domain: math.fsum(values) / len(values) for domain, values in found.items()}


def _difference_of_domains(rounds: Rounds) -> Estimate | None:
    domains = sorted(_mean_by_domain(rounds))
    if len(domains) != 2:
        return None
    first, second = domains
    both = [t.draft_lens_by_domain for t in rounds.values() if len(t.draft_lens_by_domain) == 2]
    return ratio_of_sums([d[first] - d[second] for d in both], [1.0] * len(both))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
