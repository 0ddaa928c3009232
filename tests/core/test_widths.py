"""How many drafts are proposed: the choice, its inertia, and what looking further costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sglang_dspark.core.budget import expected_tokens, search
from sglang_dspark.core.cost_table import BlockCost
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.plan import Batch
from sglang_dspark.core.planner import Outlook, Searching
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.survival import survivals
from sglang_dspark.core.widths import WidthRules, WidthState
from tests.core.made_up import linear_table

GAMMA = 7


def costs_of(ms_per_draft):
    """2 ms a block and ms_per_draft for each draft of each request."""
    requests, widths = (1, 32), (1, GAMMA)
    draft = tuple(tuple(2 + n * w * ms_per_draft for w in widths) for n in requests)
    table = replace(linear_table(), draft=BlockCost(requests, widths, draft))
    return StepCosts(table, max_requests=32, gamma=GAMMA)


def run(steps, confidence_of, costs, num_requests=8, gamma=GAMMA, rules=None):
    """Plans of a served batch; confidence_of(step, k) of its k-th drafts."""
    look = Outlook(ConfidenceRelay(64, GAMMA, 2), costs)
    planner = Searching(look, costs, widths=rules or WidthRules())
    slots, plans = np.arange(num_requests), []
    for step in range(steps):
        batch = Batch(step, slots, slots + 1, 0, gamma)
        plans.append(planner.plan(batch))
        c = np.array([confidence_of(step, k) for k in range(plans[-1].width)])
        survival = survivals(np.tile(c, (num_requests, 1)))
        look.relay.publish(step, slots, slots + 1, survival)
    return plans


@pytest.mark.parametrize("num_requests", [1, 8, 32])
@pytest.mark.parametrize("ms_per_draft", [0.0, 0.02, 0.2, 1.0])
@pytest.mark.parametrize("confidence", [0.3, 0.6, 0.9])
def test_it_settles_on_the_best_width_there_is(num_requests, ms_per_draft, confidence):
    costs = costs_of(ms_per_draft)
    plans = run(300, lambda step, k: confidence, costs, num_requests)
    settled = [p for p in plans[200:] if p.reason == "search"]
    survival = survivals(np.full((num_requests, GAMMA), confidence))
    rates = [
        search(expected_tokens(survival[:, :w]), costs.drafting_ms(num_requests, 0, w)).rate
        for w in range(1, GAMMA + 1)
    ]
    assert len({p.width for p in settled}) == 1
    assert rates[settled[-1].width - 1] >= max(rates) / (1 + WidthRules().margin) - 1e-6


def test_drafts_that_cost_nothing_are_all_proposed():
    assert {p.width for p in run(200, lambda step, k: 0.8, costs_of(0.0))} == {GAMMA}


def test_a_draft_that_gets_better_is_found_by_looking():
    """At 0.3 only the first draft pays; from step 200 on all do, which no narrow block shows."""
    plans = run(800, lambda step, k: 0.3 if step < 200 else 0.95, costs_of(0.05), num_requests=4)
    assert plans[190].width < 3
    assert plans[-1].width == GAMMA
    # The usual course of a block was learned while it was bad: without looks it stays so.
    blind = run(
        800,
        lambda step, k: 0.3 if step < 200 else 0.95 if k else 0.3,
        costs_of(0.05),
        num_requests=4,
        rules=WidthRules(look_share=0.0),
    )
    assert blind[-1].width < 3


def test_looks_cost_no_more_than_their_share():
    costs, n = costs_of(0.2), 8
    plans = run(3000, lambda step, k: 0.3, costs, num_requests=n)
    extra_ms = [
        costs.once_ms(n, p.width) - costs.once_ms(n, 1) for p in plans if p.reason == "look"
    ]
    assert len(extra_ms) > 5
    assert sum(extra_ms) <= WidthRules().look_share * sum(p.predicted_ms for p in plans)


def test_the_end_of_a_burst_decides_nothing_for_the_next_one():
    """32 requests have dear drafts; the last one of them has not."""
    costs = costs_of(0.2)
    look = Outlook(ConfidenceRelay(64, GAMMA, 2), costs)
    planner = Searching(look, costs, widths=WidthRules())

    def serve(num_requests, steps, first):
        slots, widths = np.arange(num_requests), []
        for step in range(first, first + steps):
            plan = planner.plan(Batch(step, slots, slots + 1, 0, GAMMA))
            survival = survivals(np.full((num_requests, plan.width), 0.9, np.float32))
            look.relay.publish(step, slots, slots + 1, survival)
            widths += [plan.width] if plan.reason == "search" else []
        return widths

    crowded, alone, again = serve(32, 200, 0), serve(1, 400, 200), serve(32, 20, 600)
    assert crowded[-1] < alone[-1]
    assert set(again) == {crowded[-1]}


def test_a_gamma_limit_bounds_the_width():
    plans = run(200, lambda step, k: 0.95, costs_of(0.0), gamma=3)
    assert {p.width for p in plans} == {3}
    assert all(p.budget <= 8 * 3 for p in plans)


def test_all_other_widths_have_their_turn():
    state, rules, seen = WidthState(present=3), WidthRules(), []
    for step in range(12):
        rival = state.rival(rules, 5, step, 4)
        seen.append(rival)
        state = state.compared(rules, 5, rival, -1.0, 4)
    assert sorted(seen) == sorted([1, 2, 4, 5] * 3) and state.present == 3


def test_one_request_changes_its_mind_slowly_and_a_crowd_compares_rarely():
    rules = WidthRules()
    state = WidthState(present=3).compared(rules, 5, 4, 0.03, 1)
    assert state.present == 3 and state.evidence[3] == pytest.approx(0.03 / 8)
    assert WidthState(present=3).compared(rules, 5, 4, 0.03, 64).present == 4
    asked = [WidthState().rival(rules, 5, step, 256) for step in range(16)]
    assert [step for step, rival in enumerate(asked) if rival] == [0, 8]


def test_evidence_is_relative_to_the_present_width():
    rules = WidthRules(inertia=0.0)
    state = WidthState(present=3).compared(rules, 5, 4, 0.004, 1).compared(rules, 5, 5, 0.1, 1)
    assert state.present == 5
    assert state.evidence == pytest.approx((-0.1, -0.1, -0.1, 0.004 - 0.1, 0.0))


def test_one_draft_leaves_nothing_to_compare():
    assert WidthState().rival(WidthRules(), 1, 0, 1) is None


@pytest.mark.parametrize(
    "wrong", [{"margin": -0.1}, {"inertia": -1.0}, {"look_share": 1.0}, {"crowd": 0}]
)
def test_rules_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="margin and inertia"):
        WidthRules(**wrong)
