"""Prices follow the machine's speed, and windows pay for being packed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sglang_dspark.core.arms import ArmRules
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.core.plan import Batch
from sglang_dspark.core.planner import Outlook, Searching
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.step_time import StepTime, kind_of
from sglang_dspark.core.survival import survivals
from sglang_dspark.core.widths import WidthRules
from tests.core.made_up import linear_table

COSTS = StepCosts(linear_table(), max_requests=32, gamma=7)
SLOTS = np.arange(4)


def test_the_factor_approaches_what_is_seen_and_no_single_step_moves_it_far():
    times = StepTime(keep=0.9)
    assert times.factor("whole", 4) == 1.0
    times.add("whole", 4, 1000.0, 10.0)
    assert times.factor("whole", 4) == pytest.approx(2.0**0.1)
    for _ in range(200):
        times.add("whole", 4, 13.0, 10.0)
    assert times.factor("whole", 4) == pytest.approx(1.3, rel=1e-3)
    assert times.factor("plain", 4) == times.factor("whole", 4)


def test_steps_without_a_price_teach_nothing():
    times = StepTime()
    for taken_ms, table_ms in ((5.0, math.nan), (math.nan, 5.0), (0.0, 5.0), (5.0, 0.0)):
        times.add("whole", 1, taken_ms, table_ms)
    assert times.factor("whole", 1) == 1.0


def test_a_plan_can_be_traced_back_to_its_price_in_the_table():
    times, host = StepTime(), HostTime()
    host.add(4, 3.0)
    for _ in range(50):
        times.add("whole", 4, 15.0, 10.0)
        times.add("windows", 4, 16.0, 10.0)
    look = Outlook(ConfidenceRelay(8, 7, 1), COSTS, host=host, taken=times)
    batch = Batch(5, SLOTS, SLOTS + 1, 500, 7)
    drafting, plain = look.drafting(batch, 28, "verify-all"), look.plain(batch, "never-draft")
    assert look.table_ms(batch, drafting) == pytest.approx(COSTS.drafting_ms(4, 500, 7)[28])
    assert look.table_ms(batch, plain) == pytest.approx(COSTS.no_draft_ms(4, 500))
    assert drafting.predicted_ms > look.table_ms(batch, drafting) + 3.0


def test_a_change_of_speed_does_not_change_what_is_better():
    """A mean per kind goes stale for the kind that is not run: 1.3 beside 1.0 would end drafting,
    or bring it back, because of a neighbour on the machine."""
    times = StepTime()
    before = times.factor("plain", 1) / times.factor("whole", 1)
    for _ in range(300):
        times.add("whole", 1, 13.0, 10.0)  # a busy hour, drafting
    for _ in range(300):
        times.add("plain", 1, 10.0, 10.0)  # a quiet one, not drafting
    assert times.factor("plain", 1) / times.factor("whole", 1) == pytest.approx(before)
    assert times.factor("whole", 1) == pytest.approx(1.0, abs=0.01)


def useless_draft(slow, steps=1500):
    """Share of steps that draft in the end, nothing being accepted; slow(step): the machine."""
    times = StepTime()
    look = Outlook(ConfidenceRelay(8, 7, 1), COSTS, taken=times)
    planner = Searching(look, COSTS, arms=ArmRules(), widths=WidthRules())
    plans = []
    for step in range(steps):
        batch = Batch(step, SLOTS, SLOTS + 1, 0, 7)
        plan = planner.plan(batch)
        plans.append(plan)
        table_ms = look.table_ms(batch, plan)
        kind = kind_of(4, plan.width, plan.budget)
        times.add(kind, 4, table_ms * slow(step), table_ms)
        if plan.drafts:
            survival = survivals(np.full((4, plan.width), 0.02))
            look.relay.publish(step, SLOTS, SLOTS + 1, survival)
    return np.mean([p.drafts for p in plans[-500:]])


def test_a_useless_draft_stays_left_alone_whatever_the_machine_does():
    assert useless_draft(lambda step: 1.0) < 0.03
    assert useless_draft(lambda step: 1.8 if step < 300 else 1.0) < 0.03
    assert useless_draft(lambda step: 1.0 if step // 100 % 2 else 1.8) < 0.03


def test_windows_that_take_longer_than_their_price_give_way_to_whole_blocks():
    """Packing has a cost of its own; where it exceeds what trimming saves, nothing is trimmed."""
    times = StepTime()
    look = Outlook(ConfidenceRelay(8, 7, 1), COSTS, taken=times)
    batch = Batch(5, SLOTS, SLOTS + 1, 0, 7)
    look.relay.publish(4, SLOTS, SLOTS + 1, survivals(np.full((4, 7), 0.8)))
    assert Searching(look, COSTS).plan(batch).budget < 28
    for _ in range(200):
        times.add("whole", 4, 10.0, 10.0)
        times.add("windows", 4, 12.0, 10.0)
    plan = Searching(look, COSTS).plan(batch)
    assert plan.budget == 28 and kind_of(4, plan.width, plan.budget) == "whole"


def test_the_surcharge_is_bounded_and_is_forgotten_when_it_is_gone():
    times = StepTime()
    for _ in range(300):
        times.add("whole", 4, 10.0, 10.0)
        times.add("windows", 4, 20.0, 10.0)
    assert 1.15 < times.factor("windows", 4) / times.factor("whole", 4) <= 1.26
    for _ in range(500):
        times.add("whole", 4, 10.0, 10.0)
        times.add("windows", 4, 10.0, 10.0)
    assert times.factor("windows", 4) / times.factor("whole", 4) < 1.03


def test_a_budget_filled_up_to_whole_blocks_is_priced_as_such():
    costs = StepCosts(linear_table(), max_requests=4, gamma=7, round_rows=lambda rows: 32)
    times = StepTime()
    times.add("windows", 4, 11.0, 10.0)  # dearer than whole blocks, which the last budget is
    look = Outlook(ConfidenceRelay(8, 7, 1), costs, taken=times)
    batch = Batch(5, SLOTS, SLOTS + 1, 0, 7)
    plan = Searching(look, costs).plan(batch)
    assert plan.budget == 28
    assert look.table_ms(batch, plan) == pytest.approx(costs.drafting_ms(4, 0, 7)[28])


def test_windows_that_are_not_tried_lose_their_surcharge():
    times = StepTime()
    for _ in range(300):
        times.add("whole", 4, 10.0, 10.0)
        times.add("windows", 4, 12.0, 10.0)
    for _ in range(2000):
        times.add("whole", 4, 10.0, 10.0)
    assert times.factor("windows", 4) / times.factor("whole", 4) < 1.01


def test_a_new_request_count_starts_from_what_the_nearest_one_knows():
    taken = StepTime()
    for _ in range(300):
        taken.add("whole", 4, taken_ms=2.0, table_ms=1.0)
    taken.add("whole", 32, taken_ms=2.0, table_ms=1.0)
    assert taken.factor("whole", 32) == pytest.approx(2.0, rel=0.01)


def test_kinds_of_steps():
    assert [kind_of(4, *step) for step in ((0, 0), (3, 12), (3, 11), (3, 0))] == [
        *("plain", "whole", "windows", "windows")
    ]
