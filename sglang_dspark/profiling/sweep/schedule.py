"""Which turns a sweep takes, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sglang_dspark.profiling.results import Turn
from sglang_dspark.profiling.sweep.choice import CHALLENGER, FIXED, fastest
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


def arms_of(
    plan: SweepPlan, round_: Round, arms: Collection[str], turns: Iterable[Turn]
) -> list[str]:
    """The arms of one round. arms: those whose servers run; turns: at least the choosing ones."""
    if plan.choose_rounds is None or round_.number < plan.choose_rounds:
        return list(arms)
    chosen = [
        turn
        for turn in turns
        if turn.round < plan.choose_rounds
        and (turn.workload, turn.concurrency) == (round_.workload, round_.concurrency)
    ]
    best = fastest(chosen, [arm for arm in plan.of_kind(*FIXED) if arm in arms])
    return [arm for arm in arms if arm == best or arm in plan.of_kind(CHALLENGER)]


def complete_rounds(plan: SweepPlan, turns: Iterable[Turn], arms: Collection[str]) -> set[Round]:
    """Rounds in which every arm has had its turn; only these are kept on resumption."""
    turns, seen = list(turns), dict[Round, set[str]]()
    for turn in turns:
        seen.setdefault(Round.of(turn), set()).add(turn.arm)
    return {r for r, had in seen.items() if had >= set(arms_of(plan, r, arms, turns))}
