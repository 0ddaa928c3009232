"""The numbers of a report against hand calculation on a tiny result file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sglang_dspark.profiling.report.acceptance import acceptance_by_position
from sglang_dspark.profiling.report.estimate import Estimate, percentiles, ratio_of_sums
from sglang_dspark.profiling.report.points import as_json_record, summarize_points
from sglang_dspark.profiling.report.rounds import ArmKinds
from sglang_dspark.profiling.report.style import arm_styles
from sglang_dspark.profiling.report.trace import step_times, threshold_sweep
from sglang_dspark.profiling.report.words import findings
from sglang_dspark.profiling.results import (
    ArmRecord,
    Header,
    RequestRecord,
    Results,
    Turn,
    WorkerRecord,
)
from sglang_dspark.profiling.traces import Trace, TraceHeader, TraceStep


def header(*arms: str, plan: dict | None = None) -> Header:
    return Header(
        plan=plan or {}, servers=[], arms=[ArmRecord(name=a, server="s") for a in arms], target="t",
        draft="d", machine={}, versions={}, command="c", date="2001-02-03",
    )  # fmt: skip


def worker(**changes) -> WorkerRecord:
    numbers = {
        "steps": 10, "no_draft_steps": 2, "verified_requests": 8, "drafted": 24,
        "verified_drafts": 24, "accepted_drafts": 12, "accepted_histogram": [2, 2, 2, 2],
        "draft_len_histogram": [0, 0, 0, 8], "planned_rows": 34, "ceiling_drafts": 0,
        "ceiling_requests": 0, "priced_steps": 10, "predicted_ms": 90.0, "actual_ms": 100.0,
        "step_seconds": 0.1, "draft_forward_seconds": 0.02, "target_forward_seconds": 0.06,
    }  # fmt: skip
    return WorkerRecord(**(numbers | changes))


def turn(arm: str, number: int = 0, *, tokens=(20, 20), seconds=2.0, **changes) -> Turn:
    record = {
        "round": number, "workload": "code", "concurrency": 2, "arm": arm, "order": 0,
        "seconds": seconds, "sampling": {},
        "requests": [RequestRecord(tokens=n, seconds=seconds, first_token_s=0.5) for n in tokens],
    }  # fmt: skip
    return Turn(**(record | changes))


def only(results: Results, arm: str):
    (found,) = [p for p in summarize_points(results) if p.arm == arm]
    return found


def test_the_paper_s_terms_are_sums_over_sums():
    first = worker()
    second = worker(
        steps=30, no_draft_steps=0, verified_requests=32, verified_drafts=64, accepted_drafts=28,
        ceiling_drafts=40, ceiling_requests=20, priced_steps=5, predicted_ms=110.0, actual_ms=80.0,
    )  # fmt: skip
    point = only(
        Results(header("x"), [turn("x", 0, worker=first), turn("x", 1, worker=second)]), "x"
    )
    assert point.accept_length.value == pytest.approx(1 + (12 + 28) / (8 + 32))
    assert point.draft_len.value == pytest.approx((24 + 64) / (8 + 32))
    assert point.no_draft_share.value == pytest.approx(2 / 40)
    assert point.ceiling_accept_length.value == pytest.approx(1 + 40 / 20)
    assert point.predicted_step_ms.value == pytest.approx(200 / 15)
    assert point.actual_step_ms.value == pytest.approx(180 / 15)
    # Resampling two rounds can give either of them twice.
    assert point.draft_len.low == pytest.approx(2.0) and point.draft_len.high == pytest.approx(3.0)


def test_speeds_and_latencies_by_hand():
    requests = [
        RequestRecord(tokens=11, seconds=2.0, first_token_s=1.0, spec_verify_ct=4),
        RequestRecord(tokens=21, seconds=3.0, first_token_s=1.0, spec_verify_ct=6),
        RequestRecord(tokens=1, seconds=0.5, spec_verify_ct=0),
        RequestRecord(tokens=0, seconds=9.0, error="HTTP 500"),
    ]
    point = only(Results(header("x"), [turn("x", seconds=4.0, requests=requests)]), "x")
    assert (point.requests, point.errors, point.rounds) == (4, 1, 1)
    assert point.tokens_per_s.value == pytest.approx(33 / 4)
    assert point.user_tokens_per_s.value == pytest.approx((11 / 2 + 21 / 3 + 1 / 0.5) / 3)
    assert point.sglang_accept_length.value == pytest.approx(32 / 10)
    assert point.ttft_ms.p50.value == pytest.approx(1000.0)
    assert point.tpot_ms.p50.value == pytest.approx(100.0)
    assert point.e2e_s.p50.value == pytest.approx(2.0)
    assert point.e2e_s.p95.value == pytest.approx(2.9)
    assert point.e2e_s.p99.value == pytest.approx(2.98)
    assert point.tokens_per_s.low is None and point.accept_length is None


def test_a_point_without_an_answer_still_counts_its_errors():
    failed = [RequestRecord(tokens=0, seconds=1.0, error="refused")] * 3
    results = Results(
        header("no-speculation", "compact"),
        [turn("no-speculation"), turn("compact", requests=failed)],
    )
    point = only(results, "compact")
    assert (point.requests, point.errors) == (3, 3)
    assert point.tokens_per_s.value == 0.0
    assert point.e2e_s is point.user_tokens_per_s is point.vs_no_speculation is None


def test_ratios_are_paired_within_rounds():
    turns = []
    for number, slow in enumerate((1.0, 1.7, 0.6, 1.2)):  # the machine's mood, shared by a round
        turns.append(turn("no-speculation", number, seconds=2 * slow))
        turns.append(turn("compact", number, seconds=slow))
    turns.append(turn("compact", 4, seconds=50))  # no partner: an interrupted round
    point = only(Results(header("no-speculation", "compact"), turns), "compact")
    ratio = point.vs_no_speculation
    assert ratio.value == pytest.approx(2.0)
    assert (ratio.low, ratio.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (
        only(Results(header("no-speculation"), turns[:1]), "no-speculation").vs_no_speculation
        is None
    )


def test_the_best_fixed_arm_is_chosen_on_even_rounds_and_compared_on_odd_ones():
    seconds = {
        # On all rounds together static-3 would win; on the even ones static-7 does.
        "no-speculation": (4, 4, 4, 4),
        "static-3": (2.2, 1.0, 2.2, 1.0),
        "static-7": (2.0, 3.0, 2.0, 3.0),
        "cap-accept": (0.1, 0.1, 0.1, 0.1),  # not a setting that anyone serves with
        "compact": (9.0, 1.5, 9.0, 1.5),
    }
    turns = [turn(a, i, seconds=s) for a, row in seconds.items() for i, s in enumerate(row)]
    point = only(Results(header(*seconds), turns), "compact")
    assert point.best_fixed == "static-7"
    assert point.vs_best_fixed.value == pytest.approx(3.0 / 1.5)
    others = [p for p in summarize_points(Results(header(*seconds), turns)) if p.arm != "compact"]
    assert all(p.best_fixed is None for p in others)


def test_with_choosing_rounds_the_later_ones_compare():
    turns = [turn("static-3", 0, seconds=1.0), turn("static-7", 0, seconds=2.0)]
    turns += [turn("compact", 0, seconds=9.0)]
    turns += [
        turn(a, n, seconds=s) for n in (1, 2, 3) for a, s in (("static-3", 3), ("compact", 2))
    ]
    arms = header("static-3", "static-7", "compact", plan={"choose_rounds": 1})
    point = only(Results(arms, turns), "compact")
    assert point.best_fixed == "static-3"
    assert point.vs_best_fixed.value == pytest.approx(1.5)


def test_repeats_have_ratios_of_their_own():
    turns = [
        turn(arm, number, repeat=repeat, seconds=seconds)
        for arm, by_repeat in (("no-speculation", (2, 2)), ("no-speculation-b", (2, 1)))
        for repeat, seconds in enumerate(by_repeat)
        for number in range(3)
    ]
    point = only(Results(header("no-speculation", "no-speculation-b"), turns), "no-speculation-b")
    assert point.rounds == 6
    assert [r.value for r in point.vs_no_speculation_by_repeat] == pytest.approx([1.0, 2.0])


def test_the_instrument_against_itself_is_judged_per_repeat():
    arms = header("no-speculation", "no-speculation-b")
    rng = np.random.default_rng(2)
    turns = [
        turn(arm, number, repeat=repeat, seconds=float(rng.normal(2, 0.02) / (1 + 0.5 * fast)))
        for repeat, fast in ((0, False), (1, True))
        for number in range(6)
        for arm, fast in (("no-speculation", False), ("no-speculation-b", fast))
    ]
    (told,) = findings(summarize_points(Results(arms, turns)), ArmKinds.of(arms))
    assert "1 of 2 intervals hold 1" in told


def test_every_arm_has_a_look_of_its_own():
    names = ("no-speculation", "no-speculation-b", "static-1", "static-3", "static-5", "static-7",
             "compact", "compact-b", "cap-accept", "no-draft", "ngram", "eagle3")  # fmt: skip
    styles = arm_styles(ArmKinds.of(header(*names)).kinds)
    assert list(styles) != [] and set(styles) == set(names)
    assert len({s.colour for s in styles.values()}) == len(names)


def test_arms_are_what_the_plan_says_or_their_name():
    plan = {"arms": [{"name": "base", "kind": "no-speculation"}, "static-3"]}
    kinds = ArmKinds.of(header("static-3", "compact-b", "ngram", "base", plan=plan))
    assert kinds.control == "base"
    assert list(kinds.kinds.values()) == ["static", "compact", "other", "no-speculation"]


def test_domains_are_compared_within_rounds():
    """The machine's load moves both from round to round; their difference hardly moves."""
    lens = [{"a": base, "b": base - 1.0} for base in (1.5, 3.0, 2.0, 4.0)]
    turns = [turn("x", i, draft_lens_by_domain=both) for i, both in enumerate(lens)]
    point = only(Results(header("x"), turns), "x")
    assert point.draft_len_difference == Estimate(1.0, 1.0, 1.0)
    alone = only(Results(header("x"), [turn("x", draft_lens_by_domain={"a": 1.0})]), "x")
    assert alone.draft_len_difference is None


def test_numbers_become_plain_json():
    results = Results(header("x"), [turn("x", i, worker=worker()) for i in range(2)])
    record = as_json_record(only(results, "x"))
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["accept_length"] == {"value": 2.5, "low": 2.5, "high": 2.5}
    point = only(Results(header("x"), [turn("x", draft_lens_by_domain={"a": float("nan")})]), "x")
    assert as_json_record(point)["draft_len_by_domain"] == {"a": None}


def test_percentile_intervals_agree_with_resampling_one_by_one():
    rng = np.random.default_rng(5)
    rounds = [rng.exponential(size=n).tolist() for n in (7, 3, 9, 5)]
    found = percentiles(rounds)
    assert found.p95.value == pytest.approx(np.percentile(np.concatenate(rounds), 95))
    picks = np.random.default_rng(0).integers(4, size=(2000, 4))
    drawn = [np.percentile(np.concatenate([rounds[i] for i in row]), 95) for row in picks]
    low, high = np.percentile(drawn, (2.5, 97.5))
    assert (found.p95.low, found.p95.high) == (pytest.approx(low), pytest.approx(high))


def test_a_ratio_over_nothing_is_absent_and_empty_rounds_do_no_harm():
    assert ratio_of_sums([1.0], [0.0]) is None
    assert ratio_of_sums([], []) is None
    assert percentiles([[], []]) is None
    assert ratio_of_sums([0.0, 6.0], [0.0, 3.0]).high == pytest.approx(2.0)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(200):
        under = rng.uniform(1, 2, size=20)
        found = ratio_of_sums(under * rng.normal(3.0, 0.3, size=20), under)
        hits += found.low <= 3.0 <= found.high
    assert 0.86 <= hits / 200 <= 0.99


def test_acceptance_is_conditional_and_needs_windows_of_one_size():
    # Of 10 blocks of 3: two had 0 accepted, one 1, three 2, four all 3.
    whole = worker(accepted_histogram=[2, 1, 3, 4], draft_len_histogram=[0, 0, 0, 10])
    short = worker(accepted_histogram=[3, 7, 0, 0], draft_len_histogram=[0, 10, 0, 0])
    cut = worker(accepted_histogram=[5, 2, 2, 1], draft_len_histogram=[2, 3, 4, 1])
    arms = {"static-1": short, "static-3": whole, "compact": cut}
    results = Results(header(*arms), [turn(a, worker=w) for a, w in arms.items()])
    (found,) = acceptance_by_position(results)
    assert (found.arm, found.pairs) == ("static-3", 10)
    assert [e.value for e in found.by_position] == pytest.approx([8 / 10, 7 / 8, 4 / 7])
    assert acceptance_by_position(Results(header("compact"), [turn("compact", worker=cut)])) == []


def trace(*steps: dict) -> Trace:
    named = TraceHeader(
        schema="sglang-dspark-trace-1", worker="0", gamma=2, lag=1, max_requests=4, server={}
    )
    plain = {
        "slots": [0], "generations": [1], "context_tokens": 1, "gamma": 2, "drafts": True,
        "width": 2,
        "budget": 1, "accepted": [0], "draft_lens": [1],
    }  # fmt: skip
    records = [TraceStep(**(plain | {"step": i} | s)) for i, s in enumerate(steps)]
    return Trace(named, records, truncated=False, name="t")


def test_a_threshold_verifies_the_longest_prefix_that_is_sure_enough():
    found = trace(
        {"survival": [[0.9, 0.5]], "ceiling": [2], "confidence_logits": [[0.0, 0.0]]},
        {"survival": [[0.4, 0.3]], "ceiling": [0], "confidence_logits": [[9.0, 9.0]]},
        {"survival": [[0.9, 0.9]]},  # not judged: unknown what would have happened
    )
    sweep, pairs = threshold_sweep(found, (0.0, 0.45, 0.6, 0.95))
    assert pairs == 2
    assert [(t.accepted, t.rejected) for t in sweep] == [(1.0, 1.0), (1.0, 0.0), (0.5, 0.0), (0, 0)]
    assert [t.accept_rate for t in sweep] == [0.5, 1.0, 1.0, None]
    calibrated, _ = threshold_sweep(found, (0.45, 0.6), temperatures=(1.0, 1.0))
    assert [(t.accepted, t.rejected) for t in calibrated] == [(0.5, 1.0), (0.0, 1.0)]
    assert threshold_sweep(trace({"survival": [[0.9, 0.9]]})) == ([], 0)


def test_a_step_lasts_until_the_next_one_begins():
    found = trace(
        {"worker_ms": 10.0, "gap_ms": None, "predicted_ms": 9.0},
        {"worker_ms": 20.0, "gap_ms": 1.0, "predicted_ms": 19.0},
        {"worker_ms": 30.0, "gap_ms": None, "predicted_ms": 29.0},  # after a prefill
        {"worker_ms": 35.0, "gap_ms": 2.0},  # not priced
        {"worker_ms": 40.0, "gap_ms": 2.5, "predicted_ms": 39.0},
        # Steps in between are not in the trace.
        {"step": 9, "worker_ms": 50.0, "gap_ms": 3.0, "predicted_ms": 49.0},
    )
    assert step_times(found).tolist() == [[9.0, 11.0], [29.0, 32.0]]
