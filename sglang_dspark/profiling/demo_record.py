"""The demo's result as numbers: `out/demo.json`, and the table a person reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sglang_dspark.profiling.demo import DemoPlan, DemoResult, DomainResult
from sglang_dspark.profiling.measure import Samples, join
from sglang_dspark.profiling.provenance import machine, versions
from sglang_dspark.profiling.statistics import Interval, paired_ratio, repeated_share

LOOP_SHARE = 0.5  # an answer with a larger share of repeated 8-grams than this loops


@dataclass(frozen=True, slots=True)
class DomainNumbers:
    """What is reported of one domain."""

    no_spec_tok_s: float
    dspark_tok_s: float
    speedup: Interval
    no_spec_tpot_ms: float
    dspark_tpot_ms: float
    accept_length: float
    accept_length_without_loops: float  # answers that loop left out; nan when all do
    sglang_accept_length: float
    overhead_ms: float  # worker, per step
    step_ms: float
    answers: int
    looping_answers: int


def summarize(result: DemoResult) -> dict[str, DomainNumbers]:
    """The numbers of each domain."""
    return {name: _domain_numbers(domain) for name, domain in result.domains.items()}


def _domain_numbers(result: DomainResult) -> DomainNumbers:
    control, dspark = join(result.control), join(result.dspark)
    loops = [repeated_share(s.answer.tokens) > LOOP_SHARE for s in dspark.items]
    return DomainNumbers(
        no_spec_tok_s=control.tokens_per_s,
        dspark_tok_s=dspark.tokens_per_s,
        speedup=paired_ratio(_speeds(result.dspark), _speeds(result.control)),
        no_spec_tpot_ms=control.tpot_ms,
        dspark_tpot_ms=dspark.tpot_ms,
        accept_length=dspark.worker.accept_length,
        accept_length_without_loops=dspark.only(not x for x in loops).worker.accept_length,
        sglang_accept_length=dspark.sglang_accept_length,
        overhead_ms=dspark.worker.overhead_ms,
        step_ms=dspark.worker.step_ms,
        answers=len(loops),
        looping_answers=sum(loops),
    )


def _speeds(turns: tuple[Samples, ...]) -> list[float]:
    return [turn.tokens_per_s for turn in turns]


def as_record(
    plan: DemoPlan,
    result: DemoResult,
    numbers: Mapping[str, DomainNumbers],
    *,
    command: str,
    seconds: float,
) -> dict[str, Any]:
    """The content of `out/demo.json`."""
    comparison = result.comparison
    return {
        "outputs_identical": comparison.identical,
        "prompts": comparison.prompts,
        "tokens": comparison.tokens,
        "memory_pss_mb": round(result.memory_pss_mb, 1),
        "excused_flips": comparison.excused_flips,
        "domains": {name: _headline(n) for name, n in numbers.items()},
        "details": {name: _details(numbers[name], result.domains[name]) for name in numbers},
        "provenance": {
            "command": command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "worker": result.worker,
            "gamma": result.gamma,
            "device": result.device,
            "target": str(plan.target),
            "draft": str(plan.draft),
            "rounds": plan.rounds,
            "prompts_per_turn": plan.prompts_per_turn,
            "max_new_tokens": plan.max_new_tokens,
            "server_flags": plan.dspark_flags,
            "versions": versions(),
            "machine": machine(),
        },
    }


def _headline(numbers: DomainNumbers) -> dict[str, float | None]:
    return {
        "no_spec_tok_s": _rounded(numbers.no_spec_tok_s, 2),
        "dspark_tok_s": _rounded(numbers.dspark_tok_s, 2),
        "speedup": _rounded(numbers.speedup.value),
        "speedup_low": _rounded(numbers.speedup.low),
        "accept_length": _rounded(numbers.accept_length),
    }


def _details(numbers: DomainNumbers, result: DomainResult) -> dict[str, Any]:
    flat = {k: _rounded(v) for k, v in asdict(numbers).items() if isinstance(v, float | int)}
    done = _headline(numbers)
    return {
        "speedup_high": _rounded(numbers.speedup.high),
        **{key: value for key, value in flat.items() if key not in done},
        "no_spec_tok_s_by_round": [_rounded(x, 2) for x in _speeds(result.control)],
        "dspark_tok_s_by_round": [_rounded(x, 2) for x in _speeds(result.dspark)],
        "flips": [str(flip) for flip in result.comparison.flips],
    }


def _rounded(value: float, digits: int = 3) -> float | None:
    """JSON has no nan."""
    return None if math.isnan(value) else round(value, digits)
