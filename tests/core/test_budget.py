"""How many: the search equals brute force, whatever the shape of the cost curve."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.core.algorithm1 import algorithm_1
from sglang_dspark.core.allocate import allocate
from sglang_dspark.core.budget import (
    Choice,
    at_budget,
    expected_tokens,
    search,
    with_least_gain,
)
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.plan import Batch
from sglang_dspark.core.planner import Outlook, Searching
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.survival import survivals
from sglang_dspark.core.tiers import Tier
from tests.core.made_up import random_table

GAMMA = 7


def random_survival(rng, num_requests):
    """Smooth, saturated, tied or dead confidences."""
    confidence = rng.beta(*rng.choice([0.5, 1.0, 3.0], size=2), size=(num_requests, GAMMA))
    kind = rng.integers(4)
    if kind == 1:
        confidence = np.round(confidence * 2) / 2
    elif kind == 2:
        confidence[rng.random(confidence.shape) < 0.1] = np.nan
    return survivals(confidence)


def brute_force(survival, step_ms):
    """Every budget, one after the other; the smallest of the best."""
    best, best_rate, tau = 0, -1.0, float(len(survival))
    ranked = sorted((float(s) for s in survival.flat), reverse=True)
    for budget in range(len(ranked) + 1):
        tau += ranked[budget - 1] if budget else 0.0
        if tau / float(step_ms[budget]) > best_rate:
            best, best_rate = budget, tau / float(step_ms[budget])
    return best, best_rate


def one_row_per_tier(rng, num_requests):
    rows = num_requests * (GAMMA + 1)
    tokens = rng.choice(np.arange(num_requests, rows + 1), size=min(6, rows - num_requests))
    return [Tier(int(t), num_requests) for t in {*tokens.tolist(), rows}]


@pytest.mark.parametrize("tiered", [False, True])
def test_the_lagged_planner_equals_brute_force(tiered):
    """10,000 instances in all: staircases with dips, ties, NaN, 1-8 requests, lag 1 and 2."""
    rng = np.random.default_rng(1)
    for i in range(5000):
        num_requests, lag = int(rng.integers(1, 9)), 1 + i % 2
        tiers = one_row_per_tier(rng, num_requests) if tiered else ()
        table = random_table(rng, num_requests * (GAMMA + 1))
        costs = StepCosts(table, max_requests=num_requests, gamma=GAMMA, tiers=tiers)
        relay = ConfidenceRelay(16, GAMMA, lag)
        survival = random_survival(rng, num_requests)
        slots = rng.permutation(16)[:num_requests]
        relay.publish(0, slots, slots + 5, survival)
        relay_order = rng.permutation(num_requests)
        batch = Batch(lag, slots[relay_order], slots[relay_order] + 5, 0, GAMMA)
        plan = Searching(Outlook(relay, costs), costs).plan(batch)

        step_ms = np.array([price(table, tiers, num_requests, n) for n in range(survival.size + 1)])
        best, rate = brute_force(survival, step_ms)
        filled = max(best, min(plan.num_rows - num_requests, survival.size))
        assert plan.budget == (filled if tiered else best)
        assert plan.predicted_ms == pytest.approx(step_ms[best], rel=1e-12)
        if not tiered:
            assert plan.predicted_tokens / plan.predicted_ms == pytest.approx(rate, rel=1e-12)


def price(table, tiers, num_requests, budget):
    """ms of a drafting step by the plainest reading of the table."""
    rows = num_requests + budget
    run = min((t.tokens for t in tiers if t.serves(num_requests, rows)), default=rows)
    return table.verify.ms[run - 1][0] + (table.draft.ms[0][0] + table.rest.ms[0][0])


def test_ties_go_to_the_smallest_budget():
    tau = expected_tokens(np.array([[0.5, 0.25]]))
    assert tau.tolist() == [1.0, 1.5, 1.75]
    assert search(tau, np.array([1.0, 1.5, 1.75])).budget == 0
    assert search(tau, np.array([2.0, 1.5, 1.75])).budget == 1


def test_a_dip_behind_a_stair_is_found_where_algorithm_1_stops():
    survival = np.array([[0.9, 0.8, 0.7]])
    step_ms = np.array([1.0, 2.5, 2.5, 1.5])
    assert algorithm_1(survival, step_ms) == Choice(0, 1.0, 1.0)
    assert search(expected_tokens(survival), step_ms).budget == 3


def test_algorithm_1_stops_at_the_first_candidate_that_does_not_pay():
    survival = np.array([[0.9, 0.1], [0.8, 0.2]])
    choice = algorithm_1(survival, np.array([2.0, 2.4, 2.8, 3.2, 3.3]))
    assert choice == Choice(2, 2.0 + 0.9 + 0.8, 2.8)
    assert allocate(survival, choice.budget).tolist() == [1, 1]


def test_the_search_does_not_change_its_input():
    survival = np.array([[0.9, 0.1], [0.8, 0.2]], dtype=np.float32)
    expected_tokens(survival)
    assert survival.tolist() == np.array([[0.9, 0.1], [0.8, 0.2]], dtype=np.float32).tolist()


def test_a_small_gain_is_not_worth_trimming_for():
    """faults.md C1: under the guard everything is verified."""
    tau, step_ms = np.array([1.0, 1.5, 1.9]), np.array([1.0, 1.46, 1.9])  # rates 1, 1.027, 1
    best, full = search(tau, step_ms), at_budget(tau, step_ms, 2)
    assert best.budget == 1
    assert with_least_gain(best, full, 0.04) == full
    assert with_least_gain(best, full, 0.02) == best


def test_a_rising_table_trims_and_a_flat_one_does_not():
    """faults.md C1 and K3: linear cost, low and high acceptance."""
    steps = np.arange(8)
    for s, cost, expected in ((0.2, 0.4, 0), (0.97, 0.1, 7), (0.2, 1e-9, 7)):
        survival = survivals(np.full((1, 7), s))
        assert search(expected_tokens(survival), 1.0 + cost * steps).budget == expected
