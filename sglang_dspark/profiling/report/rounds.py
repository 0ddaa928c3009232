"""The turns of a sweep by point and round, checked; and how two arms compare over rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_dspark.profiling.report.estimate import Estimate
from sglang_dspark.profiling.results import Header, Results, Turn
from sglang_dspark.profiling.statistics import paired_ratio
from sglang_dspark.profiling.sweep.choice import Key, choosing_and_comparing, fastest

Rounds = Mapping[Key, Turn]  # of one arm at one point

NO_SPECULATION, STATIC, COMPACT, CAP_ACCEPT = "no-speculation", "static", "compact", "cap-accept"
KINDS = (STATIC, COMPACT, CAP_ACCEPT, "no-draft")


class ReportError(ValueError):
    """An input cannot be reported; the text says which and why."""


@dataclass(frozen=True, slots=True)
class BestFixed:
    """The fastest setting that does not change at run time."""

    arm: str
    ratio: Estimate  # ours / its


@dataclass(frozen=True, slots=True)
class ArmKinds:
    """What each arm of a sweep is: `kinds[name]` as in the plan, in the order of the header."""

    kinds: Mapping[str, str]

    @classmethod
    def of(cls, header: Header) -> ArmKinds:
        """From the plan; an arm that it does not describe is what its name begins with."""
        planned = {
            arm["name"]: arm["kind"]
            for arm in header.plan.get("arms", [])
            if isinstance(arm, dict) and {"name", "kind"} <= arm.keys()
        }
        return cls({a.name: planned.get(a.name) or _kind_of(a.name) for a in header.arms})

    @property
    def control(self) -> str | None:
        """The first arm without speculation; later ones are compared with it (A/A)."""
        return next((name for name, kind in self.kinds.items() if kind == NO_SPECULATION), None)

    def of_kind(self, *kinds: str) -> tuple[str, ...]:
        return tuple(name for name, kind in self.kinds.items() if kind in kinds)


def _kind_of(name: str) -> str:
    known = (NO_SPECULATION, *KINDS)
    return next((kind for kind in known if name == kind or name.startswith(f"{kind}-")), "other")


def turns_by_point(results: Results) -> dict[tuple[str, int], dict[str, Rounds]]:
    """(workload, concurrency) -> arm -> its rounds, in order; every turn of the file is in it.

    Raises:
        ReportError: no turns, an arm that the header does not list, a turn that is there twice,
            a turn that took no time.
    """
    if not results.turns:
        raise ReportError("the result file has no turns yet: let the sweep finish a round first")
    known = {arm.name for arm in results.header.arms}
    found: dict[tuple[str, int], dict[str, dict[Key, Turn]]] = {
        (w, c): {} for w in results.workloads for c in results.concurrencies
    }
    for turn in results.turns:
        where = (
            f"turn of {turn.arm!r} on {turn.workload!r} at concurrency {turn.concurrency}, "
            f"repeat {turn.repeat}, round {turn.round}"
        )
        if turn.arm not in known:
            raise ReportError(f"{where}: the header lists the arms {sorted(known)} only")
        if not turn.seconds > 0:
            raise ReportError(f"{where}: it took {turn.seconds} s, must be above 0")
        rounds = found[turn.workload, turn.concurrency].setdefault(turn.arm, {})
        if (turn.repeat, turn.round) in rounds:
            raise ReportError(f"{where}: it is in the file twice; keep one of them")
        rounds[turn.repeat, turn.round] = turn
    return {
        point: {a: dict(sorted(arms[a].items())) for a in results.arms if a in arms}
        for point, arms in found.items()
        if arms
    }


def speed_ratio(
    ours: Rounds, control: Rounds, keys: Iterable[Key] | None = None
) -> Estimate | None:
    """tokens/s of ours / control over the rounds that both have (of `keys`, if given).

    None where there is no such round, or one of them was answered by no tokens at all.
    """
    shared = ours.keys() & control.keys()
    wanted = shared if keys is None else shared & set(keys)
    pairs = [(ours[k].tokens_per_s, control[k].tokens_per_s) for k in sorted(wanted)]
    if not pairs or min(min(p) for p in pairs) <= 0:
        return None
    if len(pairs) == 1:
        return Estimate(pairs[0][0] / pairs[0][1])
    interval = paired_ratio([a for a, _ in pairs], [b for _, b in pairs])
    if not np.isfinite((interval.low, interval.high)).all():
        return Estimate(interval.value)
    return Estimate(interval.value, interval.low, interval.high)


def against_best_fixed(
    arms: Mapping[str, Rounds], ours: str, fixed: Iterable[str], plan: dict[str, Any]
) -> BestFixed | None:
    """`ours` against the best of the `fixed` arms at one point, chosen by tokens/s.

    None without a fixed arm or a round to compare on; see `sweep/choice.py`.
    """
    keys = {key for rounds in arms.values() for key in rounds}
    choosing, comparing = choosing_and_comparing(plan, keys)
    turns = [turn for rounds in arms.values() for key, turn in rounds.items() if key in choosing]
    best = fastest(turns, [arm for arm in fixed if arm in arms])
    if best is None:
        return None
    ratio = speed_ratio(arms[ours], arms[best], comparing)
    return None if ratio is None else BestFixed(best, ratio)


def sums(rounds: Rounds) -> tuple[list[float], list[float]]:
    """([tokens], [seconds]) by round."""
    return [t.tokens for t in rounds.values()], [t.seconds for t in rounds.values()]
