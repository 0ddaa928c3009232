"""The planners, one property each; the arms over many steps."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from sglang_dspark.core.arms import ArmRules, ArmState, decide_arm
from sglang_dspark.core.budget import Choice
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.feedback import AcceptanceFeedback
from sglang_dspark.core.plan import Batch, Pin
from sglang_dspark.core.planner import (
    NeverDraft,
    Outlook,
    Pinned,
    Searching,
    Synchronous,
    VerifyAll,
)
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.survival import survivals
from tests.core.made_up import linear_table

GAMMA = 7
COSTS = StepCosts(linear_table(), max_requests=32, gamma=GAMMA)


def outlook(costs=COSTS, lag=1, feedback=None):
    return Outlook(ConfidenceRelay(64, GAMMA, lag), costs, feedback)


def batch(step=5, num_requests=4, gamma=GAMMA, context=0):
    slots = np.arange(num_requests)
    return Batch(step, slots, slots + 1, context, gamma)


@pytest.mark.parametrize("costs", [None, COSTS], ids=["no table", "table"])
@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        (Pin(drafts=5), 5),
        (Pin(drafts=0), 0),
        (Pin(drafts=999), 28),
        (Pin(fraction=0.5), 14),
        (Pin(fraction=0.3), 8),
        (Pin(fraction=1.0), 28),
    ],
)
def test_a_pin_is_honoured_with_and_without_a_table(pin, expected, costs):
    """faults.md C2, C9: 25, 50 and 100 % of the rows really differ."""
    plan = Pinned(outlook(costs), pin).plan(batch())
    assert (plan.drafts, plan.budget, plan.num_rows) == (True, expected, 4 + expected)
    assert plan.reason == "pinned" and np.isnan(plan.predicted_ms) == (costs is None)


@pytest.mark.parametrize(
    "wrong", [{}, {"drafts": 1, "fraction": 0.5}, {"drafts": -1}, {"fraction": 1.5}]
)
def test_a_pin_that_means_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="pin"):
        Pin(**wrong)


def test_without_a_table_everything_is_verified():
    plan = VerifyAll(outlook(None)).plan(batch(gamma=3))
    assert (plan.drafts, plan.budget, plan.num_rows, plan.reason) == (True, 12, 16, "verify-all")


def test_never_draft_is_plain_decode():
    plan = NeverDraft(outlook()).plan(batch())
    assert (plan.drafts, plan.budget, plan.num_rows) == (False, 0, 4)
    assert plan.predicted_ms == pytest.approx(5.5) and plan.predicted_tokens == 4


def test_predictions_are_those_of_the_lagged_confidences():
    look = outlook()
    survival = survivals(np.full((4, GAMMA), 0.8))
    b = batch()
    look.relay.publish(4, b.slots, b.generations, survival)
    plan = VerifyAll(look).plan(b)
    assert plan.predicted_tokens == pytest.approx(4 + survival.sum())
    assert plan.predicted_ms == pytest.approx((2 + 4 / 8) + (4 + 32 / 4) + 0.5)


def test_a_longer_context_changes_the_budget():
    """Verify rows cost the same, the rest of the step more: drafting more pays."""
    look = outlook()
    budgets = []
    for context in (0, 4000, 50_000):
        b = batch(context=context)
        look.relay.publish(4, b.slots, b.generations, survivals(np.full((4, GAMMA), 0.7)))
        budgets.append(Searching(look, COSTS).plan(b).budget)
    assert budgets == sorted(budgets) and budgets[0] < budgets[-1]


def test_draft_len_falls_as_the_load_rises():
    look = outlook()
    per_request = []
    for n in (1, 4, 16, 32):
        b = batch(num_requests=n)
        look.relay.publish(4, b.slots, b.generations, survivals(np.full((n, GAMMA), 0.75)))
        per_request.append(Searching(look, COSTS).plan(b).budget / n)
    assert per_request == sorted(per_request, reverse=True) and per_request[0] > per_request[-1]


def test_least_gain_verifies_everything_under_the_guard():
    look = outlook()
    b = batch()
    look.relay.publish(4, b.slots, b.generations, survivals(np.full((4, GAMMA), 0.97)))
    free = Searching(look, COSTS).plan(b)
    guarded = Searching(look, COSTS, least_gain=0.9).plan(b)
    assert (guarded.reason, guarded.budget) == ("least-gain", 28)
    assert free.reason == "search"


def test_algorithm_1_admits_from_the_current_survivals():
    planner = Synchronous(COSTS)
    b = batch(num_requests=2)
    assert planner.plan(b).drafts
    high = planner.admit(b, survivals(np.full((2, GAMMA), 0.95)))
    low = planner.admit(b, survivals(np.full((2, GAMMA), 0.01)))
    assert high.budget > low.budget == 0 and high.reason == "algorithm-1"


def test_a_table_that_does_not_price_plain_decode_can_not_choose_it():
    costs = StepCosts(
        dataclasses.replace(linear_table(), no_draft=None), max_requests=4, gamma=GAMMA
    )
    with pytest.raises(ValueError, match="does not price a no-draft step"):
        Searching(outlook(costs), costs, arms=ArmRules())
    assert np.isnan(NeverDraft(outlook(costs)).plan(batch()).predicted_ms)


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="0 slots"):
        batch(num_requests=0)


# --- the arms -------------------------------------------------------------------------------


def run(planner_steps, confidence_of, lag=2, num_requests=4, arms=None, feedback=None, accept=None):
    """Plans of a served batch; confidence_of(step) of every draft, accept(step) the true one."""
    look = outlook(lag=lag, feedback=feedback)
    planner = Searching(look, COSTS, arms=arms or ArmRules())
    plans = []
    for step in range(planner_steps):
        b = batch(step, num_requests)
        plan = planner.plan(b)
        plans.append(plan)
        if plan.drafts:
            survival = survivals(np.full((num_requests, GAMMA), confidence_of(step)))
            look.relay.publish(step, b.slots, b.generations, survival)
            if feedback is not None and plan.budget:
                lens = np.full(num_requests, plan.budget // num_requests)
                feedback.observe(survival, lens, np.minimum(lens, accept(step)))
                continue
        if feedback is not None:
            feedback.idle(num_requests)
    return plans


def switches(plans):
    return sum(a.drafts != b.drafts for a, b in itertools.pairwise(plans))


def test_a_useless_draft_is_left_alone_and_probed_within_2_percent():
    plans = run(5000, lambda step: 0.05)
    first = next(i for i, p in enumerate(plans) if not p.drafts)
    assert first <= 8
    later = plans[first:]
    probes = [i for i, p in enumerate(later) if p.drafts]
    assert {later[i].reason for i in probes} == {"probe"}
    for end in range(1, len(later) + 1, 7):  # at any moment, not just in the end
        seen = later[:end]
        assert sum(p.drafts for p in seen) <= 0.02 * end
        plain_ms = sum(p.predicted_ms for p in seen if not p.drafts)
        extra_ms = sum(p.predicted_ms - later[0].predicted_ms for p in seen if p.drafts)
        assert extra_ms <= 0.02 * plain_ms
    gaps = np.diff(probes)
    assert np.all(np.diff(gaps) >= 0) and gaps[-1] > 500  # backing off


def test_a_draft_that_becomes_good_is_found_again():
    plans = run(3000, lambda step: 0.05 if step < 300 else 0.95)
    assert not plans[290].drafts
    back = next(i for i in range(300, 3000) if plans[i].drafts and plans[i].reason != "probe")
    assert back < 900
    assert all(p.drafts for p in plans[back:])


def test_a_draft_that_becomes_bad_is_dropped_within_tens_of_steps():
    plans = run(400, lambda step: 0.95 if step < 200 else 0.05)
    assert all(p.drafts for p in plans[:200])
    assert not any(p.drafts and p.reason != "probe" for p in plans[230:])


def break_even():
    """The confidence at which drafting and plain decode are predicted to be equally good."""
    for confidence in np.linspace(0.1, 0.9, 801):
        look, b = outlook(), batch()
        look.relay.publish(4, b.slots, b.generations, survivals(np.full((4, GAMMA), confidence)))
        plan = Searching(look, COSTS).plan(b)
        if plan.predicted_tokens / plan.predicted_ms >= 4 / COSTS.no_draft_ms(4, 0):
            return confidence
    raise AssertionError


def test_near_break_even_it_does_not_flap():
    level, rng = break_even(), np.random.default_rng(3)
    noise = rng.normal(0, 0.02, size=4000)
    plans = run(4000, lambda step: float(np.clip(level + noise[step], 0, 1)))
    probes = sum(p.reason == "probe" for p in plans)
    assert switches(plans) - 2 * probes <= 6


def test_a_confident_head_that_is_always_wrong_is_caught_by_feedback():
    """A garbage draft whose confidences say 0.95 would otherwise be drafted for ever."""
    blind = run(1000, lambda step: 0.95)
    assert all(p.drafts for p in blind)
    seeing = run(4000, lambda step: 0.95, feedback=AcceptanceFeedback(GAMMA), accept=lambda s: 0)
    assert np.mean([p.drafts for p in seeing]) < 0.05


def test_time_alone_does_not_bring_a_useless_draft_back():
    """Loads that change and thousands of idle steps: only probes draft, at any load."""
    feedback = AcceptanceFeedback(GAMMA)
    look = outlook(feedback=feedback)
    planner, plans = Searching(look, COSTS, arms=ArmRules()), []
    for step in range(12_000):
        num_requests = (1, 2, 4, 8)[step // 400 % 4]
        slots, step_generation = np.arange(num_requests), step // 100  # new requests now and then
        b = Batch(step, slots, np.full(num_requests, step_generation), 0, GAMMA)
        plans.append(plan := planner.plan(b))
        if not plan.budget:
            feedback.idle(num_requests)
            continue
        survival = survivals(np.full((num_requests, GAMMA), 0.95))
        look.relay.publish(step, b.slots, b.generations, survival)
        lens = np.full(num_requests, plan.budget // num_requests)
        feedback.observe(survival, lens, np.zeros(num_requests))
    assert {p.reason for p in plans[1000:] if p.drafts} == {"probe"}


def test_a_probe_verifies_drafts_even_where_none_seems_worth_it():
    plans = run(2000, lambda step: 0.01)
    probes = [p for p in plans if p.reason == "probe"]
    assert len(probes) > 2 and all(p.budget >= 4 for p in probes)


def test_feedback_forgets_so_that_a_cured_draft_comes_back():
    plans = run(
        12_000,
        lambda step: 0.95,
        feedback=AcceptanceFeedback(GAMMA),
        accept=lambda step: 0 if step < 1000 else 7,
    )
    assert np.mean([p.drafts for p in plans[-1000:]]) == 1.0


def test_changing_request_counts_earn_no_probes_of_their_own():
    """A draft that knows nothing, under a load that comes and goes."""
    look = outlook()
    planner, plans = Searching(look, COSTS, arms=ArmRules()), []
    for step in range(8000):
        b = batch(step, (1, 2, 4, 8)[step // 20 % 4])
        plans.append(planner.plan(b))
        if plans[-1].drafts:
            survival = survivals(np.full((b.num_requests, GAMMA), 0.05))
            look.relay.publish(step, b.slots, b.generations, survival)
    judged = [i for i, p in enumerate(plans) if p.reason == "search"]
    assert len(judged) < 60 and judged[-1] < 160  # each of the four makes up its mind once
    later = plans[160:]
    assert 0 < sum(p.drafts for p in later) <= 0.02 * len(later)


def test_the_wait_doubles_up_to_its_limit():
    rules, state, waits = ArmRules(longest_wait=200), ArmState(), []
    for _ in range(3000):
        decision = decide_arm(state, rules, Choice(0, 1.0, 1.2), 1.0, 1, 1.2)
        state = decision.state
        if decision.reason == "probe":
            waits.append(state.wait)
    assert waits[:3] == [100, 200, 200] and set(waits[3:]) == {200}


def test_a_dear_probe_waits_until_it_is_paid_for():
    rules, state, steps = ArmRules(), ArmState(), []
    for step in range(1200):
        decision = decide_arm(state, rules, Choice(0, 1.0, 2.0), 1.0, 1, 11.0)
        state = decision.state
        if decision.reason == "probe":
            steps.append(step)
    assert steps[0] >= 500 and np.diff(steps).min() >= 500  # 10 ms at 2 % of 1 ms a step


@pytest.mark.parametrize(
    "wrong",
    [
        {"margin": -1},
        {"inertia": -1},
        {"probe_share": 1.0},
        {"first_wait": 20},
        {"longest_wait": 9},
    ],
)
def test_rules_that_break_the_bound_are_refused(wrong):
    with pytest.raises(ValueError, match=r"margin|probes more"):
        ArmRules(**wrong)
