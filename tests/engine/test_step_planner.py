"""From confidences to plans: what outlasts a step, and in which order it may be used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sglang_dspark.core.cost_table import BlockCost, CostTable, Surface
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.plan import Pin
from sglang_dspark.engine.planner import StepPlanner
from sglang_dspark.engine.shelf import PricedTable
from sglang_dspark.engine.steering import Steering
from sglang_dspark.seam.batch import HostCopy
from sglang_dspark.settings import NoDraft

GAMMA, SLOTS = 4, np.array([1, 2])
GENERATIONS = np.array([1, 1])


def cheap_table() -> CostTable:
    """Rows cost a lot, drafting little: only sure drafts are worth a row."""
    return CostTable(
        draft=BlockCost.of_any_width((1, 8), (0.1, 0.1)),
        verify=Surface((1, 40), (128,), ((1.0,), (40.0,))),
        rest=BlockCost.of_any_width((1, 8), (0.1, 0.1)),
        no_draft=Surface((1, 8), (128,), ((1.1,), (8.0,))),
    )


def planner(
    mode="compact", *, lag=1, costs=True, pin=None, no_draft="off", algorithm_1=False
) -> StepPlanner:
    priced = StepCosts(cheap_table(), max_requests=8, gamma=GAMMA)
    table = PricedTable("made-up", "warn", (), priced) if costs else None
    steering = Steering(mode, GAMMA, NoDraft(mode=no_draft, period=2), pin, table)
    return StepPlanner(GAMMA, 8, lag, steering, algorithm_1=algorithm_1)


def run_step(plans: StepPlanner, survival: float, accepted=(0, 0)):
    plans.prepare(SLOTS, GENERATIONS, 128)
    step = plans.take()
    if step.plan.drafts:
        table = torch.full((2, GAMMA), survival).cumprod(1)
        lens = torch.tensor([step.plan.budget // 2, step.plan.budget - step.plan.budget // 2])
        plans.note_confidence(step, HostCopy(table), HostCopy(lens))
    plans.note_finished(list(accepted))
    return step.plan


@pytest.mark.parametrize("lag", [1, 2])
def test_confidences_reach_the_budget_exactly_lag_steps_later(lag):
    plans = planner(lag=lag)
    first = run_step(plans, 0.999)
    budgets = [run_step(plans, 0.0).budget for _ in range(4)]
    # Step 0 was sure, all later ones know better: only step `lag` sees step 0.
    assert budgets[lag - 1] > first.budget
    assert budgets[lag] == 0


def test_a_pin_is_honoured_without_a_table():
    assert run_step(planner(costs=False, pin=Pin(drafts=3)), 0.5).budget == 3
    assert run_step(planner(costs=False, pin=Pin(fraction=0.5)), 0.5).budget == GAMMA


def test_without_a_table_everything_is_verified_and_said_so():
    plan = run_step(planner(costs=False), 0.5)
    assert (plan.budget, plan.reason) == (2 * GAMMA, "verify-all")


def test_no_draft_steps_alternate_by_period():
    plans = planner("static", costs=False, no_draft="alternate")
    kinds = []
    for _ in range(6):
        plans.prepare(SLOTS, GENERATIONS, 128)
        kinds.append(plans.take().plan.drafts)
        plans.note_finished([0, 0])
    assert kinds == [True, True, False, False, True, True]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_flush_forgets_confidences(flushed):
    plans = planner()
    run_step(plans, 0.999)
    if flushed:
        plans.flush()
    plans.prepare(SLOTS, GENERATIONS, 128)  # publishes what is due, unless it was flushed
    known = plans._relay.read(1, SLOTS, GENERATIONS, GAMMA).known
    assert known.any() == (not flushed)


def test_what_was_found_outlasts_another_mode_but_not_another_table():
    plans = planner(no_draft="auto")
    ours = plans.steering
    for _ in range(60):
        run_step(plans, 0.01)
    assert not run_step(plans, 0.01).drafts
    plans.steer(replace(ours, mode="static", no_draft=NoDraft(mode="off")))
    assert run_step(plans, 0.01).reason == "verify-all"
    plans.steer(ours)
    assert not run_step(plans, 0.01).drafts
    plans.steer(replace(ours, table=replace(ours.table, name="another")))
    assert run_step(plans, 0.01).drafts


def test_a_finished_step_reports_its_windows():
    plans = planner(costs=False, pin=Pin(drafts=3))
    plans.prepare(SLOTS, GENERATIONS, 128)
    step = plans.take()
    survival = torch.full((2, GAMMA), 0.5).cumprod(1)
    plans.note_confidence(step, HostCopy(survival), HostCopy(torch.tensor([2, 1])))
    done = plans.note_finished([1, 0])
    assert done.draft_lens.tolist() == [2, 1] and done.accepted.tolist() == [1, 0]
    assert plans.live.pairs.tolist() == [2, 1, 0, 0]


def test_algorithm_1_closes_its_plan_on_the_block_of_the_step_itself():
    plans = planner(algorithm_1=True)
    plans.prepare(SLOTS, GENERATIONS, 128)
    step = plans.take()
    plans.admit(step, np.full((2, GAMMA), 0.999, dtype=np.float32).cumprod(1))
    sure = step.plan
    plans.prepare(SLOTS, GENERATIONS, 128)
    step = plans.take()
    plans.admit(step, np.zeros((2, GAMMA), dtype=np.float32))
    assert sure.budget > 0 and sure.num_rows == 2 + sure.budget
    assert (step.plan.budget, step.plan.reason) == (0, "algorithm-1")


def test_a_step_keeps_the_price_that_its_plan_was_made_of():
    """A gap noted between plan and launch must not look like an error of the table."""
    plans = planner()
    plans.prepare(SLOTS, GENERATIONS, 128)
    plans.host.add(2, 5.0)
    step = plans.take()
    assert step.table_ms == pytest.approx(step.plan.predicted_ms)
