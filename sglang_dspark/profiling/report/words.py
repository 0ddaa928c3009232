"""Sentences made of the numbers: findings, notes, captions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sglang_dspark.profiling.calibrate.report import Group
from sglang_dspark.profiling.report.acceptance import Acceptance
from sglang_dspark.profiling.report.estimate import Estimate
from sglang_dspark.profiling.report.points import PointSummary
from sglang_dspark.profiling.report.rounds import CAP_ACCEPT, COMPACT, NO_SPECULATION, ArmKinds
from sglang_dspark.profiling.report.tables import side_of_one
from sglang_dspark.profiling.report.trace import Threshold

Points = Sequence[PointSummary]
Ratio = Callable[[PointSummary], Estimate | None]


def findings(points: Points, kinds: ArmKinds) -> list[str]:
    """What a reader wants to know first."""
    told: list[str] = []
    for arm in _arms_to_tell(points, kinds):
        mine = [p for p in points if p.arm == arm]
        told += _compared(mine, f"{arm} against no speculation", lambda p: p.vs_no_speculation)
        told += _compared(mine, f"{arm} against the best fixed arm", lambda p: p.vs_best_fixed)
    for twin in kinds.of_kind(NO_SPECULATION)[1:]:
        told += _instrument([p for p in points if p.arm == twin], twin)
    return told


def _arms_to_tell(points: Points, kinds: ArmKinds) -> list[str]:
    """The compact arms; where there is none, all that are no reference themselves."""
    arms = dict.fromkeys(p.arm for p in points)
    compact = [a for a in arms if kinds.kinds[a] == COMPACT]
    return compact or [a for a in arms if kinds.kinds[a] not in (NO_SPECULATION, CAP_ACCEPT)]


def _compared(points: Points, what: str, ratio: Ratio) -> list[str]:
    known = [(p, r) for p in points if (r := ratio(p)) is not None]
    if not known:
        return []
    least, most = (f(known, key=lambda k: k[1].value) for f in (min, max))
    span = f"{least[1].value:.2f} ({_place(least[0])})"
    if len(known) > 1:
        span += f" to {most[1].value:.2f} ({_place(most[0])}) times its tokens/s"
    else:
        span += " times its tokens/s"
    if all(r.low is None for _, r in known):
        return [f"{what}: {span}; too few rounds for intervals."]
    sides = [side_of_one(r) for _, r in known]
    return [
        f"{what}: {span}; of {len(sides)} points, {sides.count(1)} are faster, "
        f"{sides.count(-1)} slower and {sides.count(0)} undecided at 95 %."
    ]


def _instrument(points: Points, twin: str) -> list[str]:
    """An arm against itself: the intervals should hold 1."""
    ratios = [
        r
        for p in points
        for r in (p.vs_no_speculation_by_repeat or (p.vs_no_speculation,))
        if r is not None and r.low is not None
    ]
    if not ratios:
        return []
    holding = sum(side_of_one(r) == 0 for r in ratios)
    median = float(np.median([r.value for r in ratios]))
    return [
        f"The instrument against itself ({twin} / no speculation): {holding} of {len(ratios)} "
        f"intervals hold 1, median ratio {median:.3f}."
    ]


def notes(points: Points, kinds: ArmKinds, errors: int) -> list[str]:
    """What limits the numbers."""
    told = []
    if errors:
        told.append(
            f"{errors:,} request{'s' * (errors != 1)} failed, in no speed and listed below."
        )
    rounds = {p.rounds for p in points}
    if rounds == {1}:
        told.append("One round per point: there are no intervals, and nothing is significant.")
    elif min(rounds) == 1:
        told.append("Points of a single round have no interval.")
    elif min(rounds) < 5:
        told.append(
            f"Only {min(rounds)} rounds at some points: a bootstrap over so few understates "
            "the uncertainty."
        )
    arms = {p.arm for p in points}
    if kinds.control not in arms:
        told.append("There is no arm without speculation, so there are no ratios to it.")
    if {kinds.kinds[a] for a in arms} & {CAP_ACCEPT}:
        told.append(
            "cap-accept verifies whole blocks and commits what compact would: it shows the "
            "ceiling of acceptance, its speed is no one's goal."
        )
    return told


def frontier(points: Points, numbered: str) -> str:
    best = max(points, key=lambda p: p.tokens_per_s.value)
    loads = sorted({p.concurrency for p in points})
    curves = f"one point per arm, at {loads[0]} requests at a time"
    if len(loads) > 1:
        curves = (
            f"one curve per arm; along it the load grows from {loads[0]} to {loads[-1]} requests "
            f"at a time (numbers at {numbered})"
        )
    return (
        f"Total throughput against what one user gets, {curves}. Up and to the right is better. "
        f"The most tokens/s: {best.tokens_per_s.value:,.0f}, {best.arm} on {_place(best)}. In the "
        "paper's figure 7 the DSpark curve lies outside the others."
    )


def load(points: Points, kinds: ArmKinds) -> str:
    told = []
    for arm in [a for a in dict.fromkeys(p.arm for p in points) if kinds.kinds[a] == COMPACT]:
        for workload in dict.fromkeys(p.workload for p in points):
            curve = [
                (p.concurrency, p.draft_len.value)
                for p in points
                if (p.arm, p.workload) == (arm, workload) and p.draft_len
            ]
            if len(curve) > 1:
                (first, a), (last, b) = curve[0], curve[-1]
                told.append(f"{workload} {a:.1f} at {first} and {b:.1f} at {last}")
    seen = f" Mean draft_len of compact: {'; '.join(told)}." if told else ""
    return (
        "Top: tokens/s of the whole server against concurrency. Bottom: how many drafts of a "
        f"request are verified in a step that drafts.{seen} In the paper's figure 8 it falls from "
        "about 5-6 to 2-3 as the load grows. Bars are 95 % intervals over rounds."
    )


def ratios(points: Points) -> str:
    fixed = (
        " Bottom: compact against the best fixed arm, named at the foot, which is chosen on the "
        "even rounds (or the plan's choose_rounds) and compared on the others."
        if any(p.vs_best_fixed for p in points)
        else ""
    )
    return (
        "tokens/s of each arm divided by those of no speculation in the same round; above 1 is "
        f"faster. Bars are 95 % intervals of the paired ratio.{fixed}"
    )


def acceptance(found: Sequence[Acceptance]) -> str:
    told = []
    for one in found:
        known = [(k, e.value) for k, e in enumerate(one.by_position, 1) if e]
        if known:
            told.append(
                f"{one.workload}: {known[0][1]:.2f} at position {known[0][0]}, {known[-1][1]:.2f} "
                f"at position {known[-1][0]} ({one.arm}, {one.pairs:,} blocks)"
            )
    return (
        "Probability that draft k is accepted given that all before it were, over all "
        f"concurrencies. {'; '.join(told)}. In the paper's figure 2 DSpark stays high and flat, "
        "where a draft without a Markov head decays."
    )


def threshold(sweeps: Mapping[str, Sequence[Threshold]], pairs: int, calibrated: bool) -> str:
    told = []
    for name, sweep in sweeps.items():
        known = [t for t in sweep if t.accept_rate is not None]
        if known:
            told.append(
                f"{name}: {known[0].accept_rate:.0%} accepted at {known[0].threshold:g}, "
                f"{known[-1].accept_rate:.0%} at {known[-1].threshold:g}"
            )
    source = "after STS" if calibrated else "as the server had it"
    return (
        "What would be verified if every request kept its longest prefix with survival at or above "
        f"a threshold (survival {source}; {pairs:,} blocks judged in cap-accept). "
        f"{'; '.join(told)}. In the paper's figure 5 the rate rises most on chat, from 46 to 96 %."
    )


def step_time(errors: Mapping[str, float]) -> str:
    """errors: median relative error by what was compared."""
    told = ", ".join(f"{error:.1%} over {what}" for what, error in errors.items())
    return (
        "Step time that the cost table predicts against the measured one: how long it took until "
        "the next step began. On the line both agree, the grey band is 10 % around it. Median "
        f"error: {told}."
    )


def _place(point: PointSummary) -> str:
    return f"{point.workload} at {point.concurrency}"


def reliability(group: Group) -> str:
    told = ", ".join(
        f"{p.before.ece:.1%} to {p.after.ece:.1%} at {p.position}"
        for p in group.positions
        if p.position % 2 or p.position == len(group.positions)
    )
    return (
        "Predicted survival against the share of blocks accepted that far, before and after "
        f"Sequential Temperature Scaling, on {group.rounds:,} held-out blocks ({group.name}). On "
        "the diagonal the confidences are right; below it they are too high. Larger markers hold "
        f"more blocks. ECE by position: {told}. In the paper 3.3-8.2 % fall to 0.4-2.0 %."
    )
