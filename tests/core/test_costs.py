"""Prices and captured sizes."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.core.cost_table import (
    BlockCost,
    CostTable,
    CostTableError,
    Surface,
    TierCost,
)
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.layout import row_layout
from sglang_dspark.core.plan import Batch
from sglang_dspark.core.planner import Outlook, Searching
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.survival import survivals
from sglang_dspark.core.tiers import Tier, choose_tier, sort_tiers
from tests.core.made_up import linear_table

FREE = BlockCost.of_any_width((1,), (0.0,))


def costs_of(rows, ms, *, tiers=(), tier_costs=(), max_requests=4, gamma=3):
    verify = Surface(tuple(rows), (0,), tuple((float(m),) for m in ms))
    table = CostTable(FREE, verify, FREE, None, tuple(tier_costs))
    return StepCosts(table, max_requests=max_requests, gamma=gamma, tiers=tiers)


@pytest.mark.parametrize("context", [0, 500, 1000, 2500, 4000, 9000])
@pytest.mark.parametrize("num_requests", [1, 5, 32, 40])
def test_a_linear_table_is_reproduced_also_past_its_ends(num_requests, context):
    costs = StepCosts(linear_table(), max_requests=40, gamma=7)
    rows = num_requests * np.arange(1, 9)
    step_ms = costs.drafting_ms(num_requests, context, 7)[rows - num_requests]
    rest = 0.5 if num_requests <= 32 else step_ms[0] - (6 + 0.375 * num_requests + context / 1000)
    expected = (2 + num_requests / 8) + (4 + rows / 4 + context / 1000) + rest
    assert step_ms == pytest.approx(expected)
    plain = 4.5 + num_requests / 4 + context / 1000
    assert costs.no_draft_ms(num_requests, context) == pytest.approx(plain)
    assert costs.drafting_ms(num_requests, context, 2) == pytest.approx(
        costs.drafting_ms(num_requests, context, 7)[: 2 * num_requests + 1]
    )


@pytest.mark.parametrize("ms", [[1.0, 3.0, 2.0], [3.0, 2.0, 1.0], [1.0, 2.0, 2.0], [2.0]])
def test_beyond_the_last_point_the_price_rises(ms):
    """faults.md C1: past the last probe of SGLang's table extra rows look free."""
    rows = [1, 2, 4][: len(ms)]
    step_ms = costs_of(rows, ms).drafting_ms(4, 0, 3)  # 4..16 rows
    assert np.all(np.diff(step_ms) > 0)


def test_longer_contexts_never_get_cheaper_past_the_last_one():
    table = CostTable(FREE, Surface((1, 8), (0, 100), ((1.0, 0.9), (2.0, 3.0))), FREE, None)
    costs = StepCosts(table, max_requests=1, gamma=7)
    near, far = costs.drafting_ms(1, 100, 7), costs.drafting_ms(1, 500, 7)
    assert far[0] == near[0] and far[-1] == pytest.approx(3.0 + 4 * 1.0)


def test_below_the_first_point_the_price_is_that_of_the_size_above():
    assert costs_of([4, 8], [1.0, 2.0]).drafting_ms(1, 0, 3).tolist() == [1.0, 1.0, 1.0, 1.0]


def test_a_captured_size_is_priced_above_and_never_below():
    tiers = [Tier(4, 2), Tier(8, 2)]
    costs = costs_of([1, 2, 3, 4, 5, 6, 7, 8], range(1, 9), tiers=tiers)
    assert costs.drafting_ms(2, 0, 3).tolist() == [4, 4, 4, 8, 8, 8, 8]
    assert [costs.num_rows(2, n) for n in range(7)] == [4, 4, 4, 8, 8, 8, 8]
    # No tier has room for three requests: they run as they are.
    assert costs.drafting_ms(3, 0, 1).tolist() == [3, 4, 5, 6]
    assert costs.tier(3, 0) is None and costs.num_rows(3, 2) == 5


def test_past_the_largest_tier_a_batch_runs_as_it_is():
    costs = costs_of([1, 8], [1.0, 8.0], tiers=[Tier(4, 2)])
    assert costs.drafting_ms(2, 0, 3) == pytest.approx([4, 4, 4, 5, 6, 7, 8])


GEOMETRIES = [Tier(192, 32), Tier(192, 192), Tier(256, 32), Tier(32, 32)]


def test_32_x_6_and_192_x_1_never_mix():
    """faults.md D1: the same 192 tokens, other slots."""
    tiers = sort_tiers(GEOMETRIES)
    assert choose_tier(tiers, 32, 192) == Tier(192, 32)
    assert choose_tier(tiers, 192, 192) == Tier(192, 192)
    assert choose_tier(tiers, 30, 150) == Tier(192, 32)
    assert choose_tier([Tier(192, 192)], 32, 192) is None
    assert choose_tier([Tier(192, 32)], 192, 192) is None
    assert choose_tier([Tier(192, 192)], 160, 160) == Tier(192, 192)
    assert choose_tier([Tier(192, 192)], 160, 161) is None
    assert len(set(GEOMETRIES)) == 4


def test_the_two_geometries_have_their_own_price_and_layout():
    timed = [TierCost(Tier(192, 32), (50.0,)), TierCost(Tier(192, 192), (20.0,))]
    costs = costs_of(
        [1, 512], [1, 512], tiers=GEOMETRIES, tier_costs=timed, max_requests=192, gamma=7
    )
    assert costs.drafting_ms(32, 0, 7)[160] == 50.0
    assert costs.drafting_ms(192, 0, 7)[0] == 20.0
    assert costs.drafting_ms(32, 0, 7)[0] == 32.0  # not timed on its own: as 32 rows of the table
    assert costs.drafting_ms(32, 0, 7)[161] == 256.0
    assert costs.tier(32, 160) == Tier(192, 32) and costs.tier(192, 0) == Tier(192, 192)
    padded = row_layout([4] * 32, costs.num_rows(32, 128))  # 160 rows in 192
    assert (padded.num_real, len(padded.rows)) == (160, 192)
    assert set(padded.rows[160:]) == {(31, 0)}  # padding stands for an anchor that exists


def test_padding_of_a_tier_is_filled_with_drafts():
    costs = costs_of([1, 16], [1.0, 4.0], tiers=[Tier(6, 2), Tier(8, 2)], max_requests=2)
    relay = ConfidenceRelay(2, 3, 1)
    slots = np.arange(2)
    relay.publish(0, slots, slots, survivals([[0.9, 0.9, 0.0], [0.0, 0.0, 0.0]]))
    plan = Searching(Outlook(relay, costs), costs).plan(Batch(1, slots, slots, 0, 3))
    assert (plan.num_rows, plan.budget) == (6, 4)  # the search alone would stop at 2 drafts


def test_a_batch_outside_the_bounds_is_refused():
    costs = costs_of([1, 8], [1.0, 2.0])
    with pytest.raises(ValueError, match="5 requests with 3 drafts each"):
        costs.drafting_ms(5, 0, 3)
    with pytest.raises(ValueError, match="4 drafts each"):
        costs.drafting_ms(1, 0, 4)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"verify": Surface((2, 1), (0,), ((1.0,), (2.0,)))}, "verify"),
        ({"verify": Surface((1, 1), (0,), ((1.0,), (2.0,)))}, "verify"),
        ({"verify": Surface((), (0,), ())}, "verify"),
        ({"verify": Surface((1,), (5, 0), ((1.0, 2.0),))}, "verify.contexts"),
        ({"verify": Surface((1, 2), (0,), ((1.0,),))}, "verify"),
        ({"verify": Surface((1, 2), (0,), ((1.0,), (-2.0,)))}, "verify"),
        ({"verify": Surface((1, 2), (0,), ((1.0,), (0.0,)))}, "verify"),
        ({"verify": Surface((1, 2), (0,), ((1.0,), (float("nan"),)))}, "verify"),
        ({"draft": BlockCost.of_any_width((1, 2), (1.0, float("inf")))}, "draft"),
        ({"draft": BlockCost.of_any_width((0, 2), (1.0, 2.0))}, "draft"),
        ({"draft": BlockCost((1,), (3, 2), ((1.0, 2.0),))}, "draft.widths"),
        ({"draft": BlockCost((1,), (1, 2), ((1.0,),))}, "draft"),
        ({"rest": BlockCost.of_any_width((1, 2), (1.0,))}, "rest"),
        ({"rest": BlockCost.of_any_width((1,), (-1.0,))}, "rest"),
        ({"no_draft": Surface((1,), (0,), ((float("nan"),),))}, "no_draft"),
        ({"tiers": (TierCost(Tier(4, 2), (1.0, 2.0)),)}, "tiers"),
        ({"tiers": (TierCost(Tier(4, 2), (1.0,)),) * 2}, "tiers"),
    ],
)
def test_a_table_that_can_not_be_is_not_born(change, field):
    parts = {
        "draft": FREE,
        "verify": Surface((1,), (0,), ((1.0,),)),
        "rest": FREE,
        "no_draft": None,
    }
    with pytest.raises(CostTableError) as error:
        CostTable(**{**parts, **change})
    assert error.value.field == field


@pytest.mark.parametrize("tier", [(4, 0), (4, 5), (0, 0)])
def test_a_tier_that_can_not_be_is_not_born(tier):
    with pytest.raises(ValueError, match="slots"):
        Tier(*tier)


def test_blocks_are_priced_by_their_width():
    table = CostTable(
        draft=BlockCost((1, 3), (1, 5), ((1.0, 3.0), (2.0, 8.0))),
        verify=Surface((1, 40), (0,), ((1.0,), (40.0,))),
        rest=BlockCost.of_any_width((1,), (0.0,)),
        no_draft=None,
    )
    costs = StepCosts(table, max_requests=3, gamma=7)
    assert [costs.once_ms(1, w) for w in (1, 2, 3, 5, 7)] == [1.0, 1.5, 2.0, 3.0, 3.0]
    assert costs.once_ms(2, 3) == pytest.approx((2.0 + 5.0) / 2)
    for width in (1, 4, 7):
        assert costs.drafting_ms(2, 0, width)[0] == pytest.approx(2.0 + costs.once_ms(2, width))
        assert len(costs.drafting_ms(2, 0, width)) == 2 * width + 1


def test_rows_are_priced_at_what_products_run_at_and_filled_up():
    plain = costs_of(list(range(1, 65)), list(map(float, range(1, 65))))
    rounded = StepCosts(plain.table, max_requests=8, gamma=7, round_rows=lambda n: -(-n // 8) * 8)
    assert rounded.drafting_ms(3, 0, 7).tolist() == [8.0] * 6 + [16.0] * 8 + [24.0] * 8
    assert rounded.num_rows(3, 4) == 7  # a pinned budget is run as it is
    assert rounded.fill(3, 4, 21) == (8, 5)
    assert rounded.fill(3, 5, 21) == (8, 5)
    assert rounded.fill(3, 0, 21) == (8, 5)
    assert rounded.fill(3, 19, 20) == (23, 20)  # no more drafts than there are
    assert plain.fill(3, 4, 21) == (7, 4)
