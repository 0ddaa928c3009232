"""Does the replay predict which arm of a measured sweep is faster?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from sglang_dspark.core.cost_table import CostTable
from sglang_dspark.profiling.results import Results, Turn
from sglang_dspark.profiling.simulate.histories import Workload, workload_of
from sglang_dspark.profiling.simulate.policies import parse_policy
from sglang_dspark.profiling.simulate.replay import Replay
from sglang_dspark.profiling.simulate.table import price_steps
from sglang_dspark.profiling.statistics import Interval, geometric_mean, paired_ratio
from sglang_dspark.profiling.traces import Trace

LEAST_ROUNDS, LEAST_REQUESTS = 5, 128  # of a prediction


class CompareError(ValueError):
    """The results do not hold both arms; the text says what there is."""


class Point(BaseModel):
    """compact / the other arm, tokens/s, at one workload and concurrency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workload: str
    concurrency: int
    traces: list[str]  # that were replayed
    rounds: int
    measured: float
    low: float  # 95 % interval
    high: float
    predicted: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.low <= 1.0 <= self.high

    @property
    def agrees(self) -> bool:
        return (self.predicted > 1) == (self.measured > 1)


class Comparison(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    ours: str = "compact"
    against: str
    points: list[Point]

    @property
    def significant(self) -> list[Point]:
        return [p for p in self.points if p.is_significant]

    @property
    def share(self) -> float:
        """Of the significant points: those whose sign was predicted; NaN without any."""
        found = self.significant
        return sum(p.agrees for p in found) / len(found) if found else math.nan

    def as_record(self) -> dict[str, Any]:
        """For JSON: every point with its verdict, and the share that agrees (null without any)."""
        points = [
            p.model_dump() | {"significant": p.is_significant, "agrees": p.agrees}
            for p in self.points
        ]
        found = self.significant
        return {
            "ours": self.ours,
            "against": self.against,
            "points": points,
            "significant_points": len(found),
            "share_agreeing": self.share if found else None,
        }


def compare(
    results: Results,
    traces: Mapping[str, Trace],
    table: CostTable,
    against: str,
    *,
    host_gap: bool = True,
    seed: int = 0,
) -> Comparison:
    """Every point of the sweep that has both arms in two rounds or more.

    Raises:
        CompareError, PolicyError, TraceError
    """
    points = []
    for workload in results.workloads:
        chosen = traces_for(workload, results.header.plan, traces)
        replayed = workload_of([traces[name] for name in chosen])
        for concurrency in results.concurrencies:
            pairs = _pairs(results, (workload, concurrency), against)
            if len(pairs) < 2:
                continue
            measured = _measured(pairs)
            predicted = _predicted(
                replayed, table, against, (concurrency, len(pairs[0][0].requests)), host_gap, seed
            )
            points.append(
                Point(
                    workload=workload,
                    concurrency=concurrency,
                    traces=list(chosen),
                    rounds=len(pairs),
                    measured=measured.value,
                    low=measured.low,
                    high=measured.high,
                    predicted=predicted,
                )
            )
    if not points:
        raise CompareError(
            f"no point of the results has compact and {against} in two rounds or more; "
            f"arms with turns: {', '.join(results.arms)}"
        )
    return Comparison(against=against, points=points)


def traces_for(
    workload: str, plan: Mapping[str, object], traces: Mapping[str, Trace]
) -> Sequence[str]:
    """Which traces stand for a workload: the one of its name, else those of its domains, else
    all."""
    if workload in traces:
        return [workload]
    entries = plan.get("workloads")
    for entry in entries if isinstance(entries, list) else []:
        domains = entry.get("domains") or []
        if entry.get("name") == workload and domains and set(domains) <= traces.keys():
            return list(domains)
    return list(traces)


def _pairs(results: Results, point: tuple[str, int], against: str) -> list[tuple[Turn, Turn]]:
    """(compact, the other) of every round in which both answered something."""
    ours, theirs = (
        {(t.repeat, t.round): t for t in results.rounds(*point, arm)}
        for arm in ("compact", against)
    )
    return [(ours[key], theirs[key]) for key in sorted(ours.keys() & theirs.keys())]


def _measured(pairs: Sequence[tuple[Turn, Turn]]) -> Interval:
    ours, theirs = zip(*pairs, strict=True)
    return paired_ratio([t.tokens_per_s for t in ours], [t.tokens_per_s for t in theirs])


def _predicted(
    workload: Workload,
    table: CostTable,
    against: str,
    load: tuple[int, int],
    host_gap: bool,
    seed: int,
) -> float:
    """Ratio of tokens/s over rounds of the sweep's own size, geometric mean.

    load: (concurrency, requests of a turn).
    """
    concurrency, requests = load
    costs, host = price_steps(table, concurrency, workload, host_gap=host_gap)
    servers = [
        Replay(workload, costs, parse_policy(name, workload.gamma), concurrency, host)
        for name in ("compact", against)
    ]
    rounds = max(LEAST_ROUNDS, -(-LEAST_REQUESTS // requests))
    ratios = []
    for number in range(rounds + 1):
        histories = workload.choose(concurrency, requests, seed + number)
        ours, theirs = (server.serve(histories, drain=True) for server in servers)
        ratios.append(ours.tokens_per_s / theirs.tokens_per_s)
    return float(geometric_mean(np.array(ratios[1:])))  # the first one warms up
