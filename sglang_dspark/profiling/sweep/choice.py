"""The best fixed setting of a point: chosen on some rounds, compared on others. Pure.

A choice made on the rounds that it is then compared on would be the luckiest arm, not the best.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sglang_dspark.profiling.results import Turn

FIXED = ("no-speculation", "static")  # kinds of arms that change nothing at run time
CHALLENGER = "compact"  # the kind that is compared with the best of them

Key = tuple[int, int]  # (repeat, round)


def fastest(turns: Iterable[Turn], arms: Collection[str]) -> str | None:
    """The arm with the most tokens per second over all its turns; None without any token."""
    tokens, seconds = dict.fromkeys(arms, 0), dict.fromkeys(arms, 0.0)
    for turn in turns:
        if turn.arm in tokens:
            tokens[turn.arm] += turn.tokens
            seconds[turn.arm] += turn.seconds
    speeds = {arm: tokens[arm] / seconds[arm] for arm in tokens if tokens[arm]}
    return max(speeds, key=speeds.__getitem__) if speeds else None


def choosing_and_comparing(plan: dict[str, Any], keys: Iterable[Key]) -> tuple[set[Key], set[Key]]:
    """Rounds of one point that choose, and those that compare.

    plan: as in a result's header; without `choose_rounds` the even rounds choose, the odd compare.
    """
    ordered = sorted(keys)
    first = plan.get("choose_rounds")
    if first is None:
        return set(ordered[0::2]), set(ordered[1::2])
    return {k for k in ordered if k[1] < first}, {k for k in ordered if k[1] >= first}
