"""What a profile plans to measure."""

from __future__ import annotations

import pytest

from sglang_dspark.profiling.profile.cells import (
    Cell,
    Limits,
    PlanError,
    budgets,
    make_plan,
    order,
    powers,
)

LIMITS = Limits(gamma=7, max_requests=8, context_len=8192, capacity=None)


def plan(contexts=(256, 4096), limits=LIMITS, **options):
    return make_plan(limits, contexts, **{"steps": 8, "fine": False, **options})


def test_rows_are_spread_over_requests_in_every_way():
    rows = {(c.requests, c.rows) for c in plan().cells if c.budget is not None}
    assert {(1, 8), (2, 8), (4, 8), (8, 8)} <= rows
    assert max(rows) == (8, 64)


def test_every_group_has_a_no_draft_cell():
    assert all(g.cells[0].budget is None and g.cells[0].rows == g.requests for g in plan().groups)


def test_the_held_out_context_lies_between_the_others_and_is_never_fitted():
    found = plan()
    assert found.held_out_context == 1024
    fitted = [c for c in found.cells if c not in found.held_out]
    assert {c.context for c in fitted} == {256, 4096}
    assert {c.budget is None for c in found.held_out} == {True, False}


def test_held_out_cells_of_other_contexts_are_never_the_ends_of_a_curve():
    others = [c for c in plan().held_out if c.context != 1024]
    assert others
    assert all(c.budget and c.budget < 7 * c.requests for c in others)


def test_what_a_server_cannot_hold_is_left_out_with_the_reason():
    small = Limits(gamma=7, max_requests=16, context_len=2048, capacity=9000)
    found = plan((256, 4096), small)
    assert (1, 4096) not in {(g.requests, g.context) for g in found.groups}
    text = "\n".join(found.left_out)
    assert "16 requests, 256 context tokens: less than 32 tokens each" in text
    assert "1 requests, 4096 context tokens: over 70% of a request's 2048 tokens" in text


@pytest.mark.parametrize("contexts", [(256,), (256, 256), (0, 256)])
def test_too_few_contexts_are_refused(contexts):
    with pytest.raises(PlanError, match="--contexts"):
        plan(contexts)


def test_contexts_that_do_not_fit_are_refused_with_the_reason():
    with pytest.raises(PlanError, match="100 tokens of the KV pool"):
        plan(limits=Limits(gamma=7, max_requests=8, context_len=8192, capacity=100))


@pytest.mark.parametrize("gamma", [1, 3, 5, 7, 15])
@pytest.mark.parametrize("fine", [False, True])
def test_budgets_run_from_none_to_all_and_share_out_evenly(gamma, fine):
    first, *drafts = budgets(6, gamma, fine)
    assert first is None
    assert drafts[0] == 0 and drafts[-1] == 6 * gamma
    assert drafts == sorted(set(drafts)) and all(b % 6 == 0 for b in drafts)


def test_fine_plans_have_more_cells():
    assert len(plan(fine=True).cells) > len(plan().cells)


def test_powers_end_at_the_largest():
    assert powers(8) == (1, 2, 4, 8)
    assert powers(6) == (1, 2, 4, 6)
    assert powers(1) == (1,)


def test_repeats_visit_the_same_cells_in_another_order():
    groups = plan().groups
    first, second = order(groups, 0), order(groups, 1)
    assert first == order(groups, 0)
    places = [[(g.requests, g.context) for g in o] for o in (first, second)]
    assert places[0] != places[1]
    cells = [{c for g in o for c in g.cells} for o in (first, second)]
    assert cells[0] == cells[1] == {c for g in groups for c in g.cells}
    assert [g.cells for g in first] != [g.cells for g in groups]


def test_a_cell_says_what_it_is():
    assert str(Cell(4, 256, None)) == "4 requests, 256 context tokens, no draft"
    assert str(Cell(4, 256, 8)) == "4 requests, 256 context tokens, budget 8"
    assert str(Cell(4, 256, 8, 2)).endswith("budget 8 of blocks of 2")


def test_narrower_blocks_are_measured_at_the_least_context_and_the_held_out_one():
    found = plan(fine=True)
    for requests in powers(8):
        groups = [g for g in found.groups if g.requests == requests]
        narrow = [g for g in groups if any(c.width for c in g.cells)]
        assert {g.context for g in narrow} == {
            min(g.context for g in groups),
            found.held_out_context,
        } & {g.context for g in groups}
        for group in narrow:
            assert [c.width for c in group.cells if c.width] == [1, 2, 3, 4, 5]
            assert all(c.budget == requests * c.width for c in group.cells if c.width)
