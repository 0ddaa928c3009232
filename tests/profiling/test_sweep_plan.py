"""What a sweep is asked to do, and in which order it does it."""

from __future__ import annotations

import json

import pytest

from sglang_dspark.profiling.prompts import PromptError
from sglang_dspark.profiling.results import RequestRecord, Turn
from sglang_dspark.profiling.sweep.arms import CONTROL, DSPARK, difference, plan_servers
from sglang_dspark.profiling.sweep.plan import PlanError, SweepPlan, WorkloadPlan, read_plan
from sglang_dspark.profiling.sweep.prompts import PromptPool, RandomPool, make_pool
from sglang_dspark.profiling.sweep.schedule import (
    Round,
    all_rounds,
    arm_order,
    arms_of,
    complete_rounds,
    first_prompt,
)

CODE = {"name": "code", "domains": ["code"]}


def plan(**changes) -> SweepPlan:
    given = {
        "arms": ["no-speculation", "static-3", "compact"],
        "workloads": [CODE],
        "concurrency": [1, 4],
        "rounds": 3,
    }
    return SweepPlan.model_validate(given | changes)


def test_names_say_what_an_arm_is():
    arms = plan(arms=["no-speculation", "no-speculation-b", "static-5", "cap-accept"]).arms
    assert [(a.kind, a.gamma) for a in arms] == [
        ("no-speculation", None),
        ("no-speculation", None),
        ("static", 5),
        ("cap-accept", None),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('arms = ["banana"]', "no-speculation, static-<gamma>"),
        ('arms = ["static-0"]', "greater than or equal to 1"),
        ('arms = ["compact", "compact"]', "compact is there twice"),
        ("concurrency = [0]", "numbers from 1"),
        ("rounds = 0", "rounds"),
        ("typo = 1", "typo"),
        ('arms = [{name = "n", kind = "sglang"}]', "flags and kind"),
        ("rounds = ", "not TOML"),
    ],
)
def test_a_wrong_plan_is_refused_with_the_place(tmp_path, text, reason):
    keys = {
        "arms": 'arms = ["compact"]',
        "concurrency": "concurrency = [1]",
        "rounds": "rounds = 2",
    }
    keys[text.partition(" ")[0]] = text
    file = tmp_path / "plan.toml"
    file.write_text("\n".join(keys.values()) + '\n[[workloads]]\nname = "w"\ndomains = ["code"]\n')
    with pytest.raises(PlanError, match=reason):
        read_plan(file)


def test_a_workload_has_exactly_one_source():
    with pytest.raises(ValueError, match="one of domains"):
        WorkloadPlan(name="w", domains=["code"], random_tokens=(1, 2))


def test_all_servers_get_the_same_limits():
    ngram = {"name": "ngram", "kind": "sglang", "flags": ["--speculative-algorithm", "NGRAM"]}
    servers = plan_servers(plan(arms=["no-speculation", "static-3", "compact", ngram]), "t", "d")
    assert [s.name for s in servers] == [CONTROL, DSPARK, "ngram"]
    limits = ("--max-running-requests", "4", "--sleep-on-idle", "--min-free-slots-delay", "1")
    for server in servers:
        assert server.flags[2:7] == limits
    assert [a.name for a in servers[1].arms] == ["static-3", "compact"]
    assert "NGRAM" in servers[2].flags and "DSPARK" not in servers[0].flags


def test_static_arms_never_leave_drafting_and_compact_may():
    by_name = {a.name: a.control for a in plan(arms=["static-3", "compact", "no-draft"]).arms}
    assert by_name["static-3"]["dspark_gamma_limit"] == 3
    assert by_name["static-3"]["dspark_no_draft"] == "off"
    assert by_name["compact"]["dspark_no_draft"] is None
    assert by_name["no-draft"]["dspark_no_draft"] == "on"


def test_no_two_rounds_of_a_workload_share_a_prompt():
    whole = plan(repeats=2)
    taken = []
    for round_ in all_rounds(whole):
        first = first_prompt(whole, round_)
        taken += range(first, first + whole.num_requests(round_.concurrency))
    assert len(set(taken)) == len(taken) == max(taken) + 1


def test_no_arm_is_always_first():
    rounds = [Round(0, n, "code", 4) for n in range(30)]
    firsts = [arm_order(["a", "b", "c"], r, seed=0)[0] for r in rounds]
    assert set(firsts) == {"a", "b", "c"}
    assert arm_order(["a", "b", "c"], rounds[0], 0) == arm_order(["a", "b", "c"], rounds[0], 0)


def test_only_whole_rounds_count_when_a_sweep_goes_on():
    def turn(number: int, arm: str) -> Turn:
        return Turn(
            round=number, workload="code", concurrency=1, arm=arm, order=0, seconds=1.0,
            sampling={}, requests=[],
        )  # fmt: skip

    turns = [turn(0, "a"), turn(0, "b"), turn(1, "a")]
    assert complete_rounds(plan(), turns, ["a", "b"]) == {Round(0, 0, "code", 1)}


CHOOSING = {"arms": ["no-speculation", "static-1", "static-3", "compact"], "rounds": 4}


def taken(arm, number, seconds, workload="code", concurrency=1):
    """A turn of 100 tokens."""
    answer = RequestRecord(tokens=100, seconds=seconds)
    return Turn(
        round=number, workload=workload, concurrency=concurrency, arm=arm, order=0,
        seconds=seconds, sampling={}, requests=[answer],
    )  # fmt: skip


def test_after_the_choosing_rounds_only_compact_and_the_fastest_fixed_arm_run():
    chosen = plan(**CHOOSING, choose_rounds=2)
    names = [arm.name for arm in chosen.arms]
    seconds = {"no-speculation": 2.0, "static-1": 1.5, "static-3": 1.0, "compact": 0.5}
    turns = [taken(arm, n, seconds[arm]) for n in range(2) for arm in names]
    # Elsewhere another arm is the best, and what later rounds say does not count.
    turns += [taken(arm, n, 1.0 / seconds[arm], concurrency=4) for n in range(2) for arm in names]
    turns += [taken("static-3", 2, 100.0), taken("compact", 2, 100.0)]
    assert arms_of(chosen, Round(0, 1, "code", 1), names, turns) == names
    assert arms_of(chosen, Round(0, 3, "code", 1), names, turns) == ["static-3", "compact"]
    assert arms_of(chosen, Round(0, 3, "code", 4), names, turns) == ["no-speculation", "compact"]
    done = complete_rounds(chosen, turns, names)
    assert Round(0, 2, "code", 1) in done and Round(0, 0, "code", 4) in done
    points, choosing, comparing = 2, 2 * 4, 2 * 2
    assert chosen.turns() == points * (choosing + comparing)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"choose_rounds": 4}, "of 4 rounds none is left"),
        ({"choose_rounds": 1, "arms": ["no-speculation", "static-3"]}, "needs a compact arm"),
        ({"choose_rounds": 1, "arms": ["compact", "cap-accept"]}, "needs a compact arm"),
        ({"choose_rounds": 1, "repeats": 2}, "do not go together"),
    ],
)
def test_there_must_be_something_to_choose_and_rounds_left_to_compare(changes, reason):
    with pytest.raises(ValueError, match=reason):
        plan(**CHOOSING | changes)


def test_used_up_prompts_come_again_as_new_texts():
    a, b = (" ".join(f"{name}{i}" for i in range(60)) for name in "ab")
    pool = PromptPool({"a": [a, "left over: b has one prompt"], "b": [b]})
    prompts = pool.take(0, 40)
    assert [p.domain for p in prompts[:4]] == ["a", "b", "a", "b"]
    texts = [p.content for p in prompts]
    assert len(set(texts)) == len(texts)
    assert all(text in texts[0] for text in texts[2::2])
    assert min(map(len, texts)) >= len(texts[0]) * 0.4
    assert pool.take(2, 1) == prompts[2:3]


def test_random_prompts_have_the_lengths_asked_for_and_repeat():
    pool = RandomPool((5, 9), vocab_size=50, seed=3)
    prompts = pool.take(0, 20)
    assert {len(p.content) for p in prompts} <= set(range(5, 10))
    assert prompts[7] == pool.take(7, 1)[0] and prompts[7] != prompts[8]


def test_prompts_are_read_from_text_or_the_first_turn(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps({"text": "one"}) + "\n" + json.dumps({"turns": ["two", "three"]}))
    pool = make_pool(WorkloadPlan(name="w", files=[file]), tmp_path, 10, 0)
    assert [p.content for p in pool.take(0, 2)] == ["one", "two"]
    file.write_text('{"turns": []}')
    with pytest.raises(PromptError, match="line 1"):
        make_pool(WorkloadPlan(name="w", files=[file]), tmp_path, 10, 0)


def test_counters_of_a_turn_are_differences_and_means_become_sums():
    before = {
        **dict.fromkeys(
            ("steps", "no_draft_steps", "verified_requests", "drafted", "verified_drafts"), 1
        ),
        **dict.fromkeys(("accepted_drafts", "planned_rows", "ceiling_drafts"), 1),
        **dict.fromkeys(("ceiling_requests", "step_seconds"), 1),
        **dict.fromkeys(("draft_forward_seconds", "target_forward_seconds"), 1),
        "priced_steps": 2, "predicted_step_ms": 3.0, "actual_step_ms": None,
        "accepted_histogram": [1, 0], "draft_len_histogram": [0, 1],
        "step_reasons": {"search": 1, "probe": 4},
    }  # fmt: skip
    after = before | {
        "steps": 5, "priced_steps": 6, "predicted_step_ms": 2.0, "actual_step_ms": 4.0,
        "accepted_histogram": [3, 2], "step_reasons": {"search": 3, "probe": 4, "no-draft": 1},
    }  # fmt: skip
    turn = difference(after, before)
    assert (turn.steps, turn.accepted_histogram) == (4, [2, 2])
    assert (turn.predicted_ms, turn.actual_ms) == (6 * 2.0 - 2 * 3.0, 24.0)
    assert turn.step_reasons == {"search": 2, "no-draft": 1}
