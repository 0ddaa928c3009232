"""Which turns a sweep takes, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sglang_dspark.profiling.results import Turn
from sglang_dspark.profiling.sweep.plan import SweepPlan


@dataclass(frozen=True, slots=True, order=True)
class Round:
    """One turn of every arm at one point."""

    repeat: int
    number: int
    workload: str
    concurrency: int

    @classmethod
    def of(cls, turn: Turn) -> Round:
        return cls(turn.repeat, turn.round, turn.workload, turn.concurrency)


def all_rounds(plan: SweepPlan) -> Iterator[Round]:
    """Points take turns, so that a slow hour of the machine touches all of them."""
    for repeat in range(plan.repeats):
        for number in range(plan.rounds):
            for workload in plan.workloads:
                for concurrency in plan.concurrency:
                    yield Round(repeat, number, workload.name, concurrency)


def arm_order(arms: Collection[str], round_: Round, seed: int) -> list[str]:
    """A new random order of the arms for every round: no arm is always first."""
    key = (seed, round_.repeat, round_.number, round_.concurrency, *round_.workload.encode())
    return [list(arms)[i] for i in np.random.default_rng(key).permutation(len(arms))]


def first_prompt(plan: SweepPlan, round_: Round) -> int:
    """Number of the round's first prompt: no two rounds of a workload share one."""
    per_round = sum(plan.num_requests(c) for c in plan.concurrency)
    before = sum(
        plan.num_requests(c) for c in plan.concurrency[: plan.concurrency.index(round_.concurrency)]
    )
    return (round_.repeat * plan.rounds + round_.number) * per_round + before


def complete_rounds(turns: Iterable[Turn], arms: Collection[str]) -> set[Round]:
    """Rounds in which every arm has had its turn; only these are kept on resumption."""
    seen: dict[Round, set[str]] = {}
    for turn in turns:
        seen.setdefault(Round.of(turn), set()).add(turn.arm)
    return {round_ for round_, had in seen.items() if had >= set(arms)}
