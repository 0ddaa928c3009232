"""The engine's own time between steps, and that it tips the choice the way it should."""

from __future__ import annotations

import numpy as np

from sglang_dspark.core.cost_table import BlockCost, CostTable, Surface
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.core.plan import Batch
from sglang_dspark.core.planner import Outlook, Searching
from sglang_dspark.core.relay import ConfidenceRelay


def test_a_mean_per_power_of_two_and_the_nearest_one_for_the_rest():
    host = HostTime(keep=0.5)
    assert host.ms(4) == 0.0
    host.add(1, 2.0)
    host.add(1, 4.0)
    host.add(16, 10.0)
    assert (host.ms(1), host.ms(2), host.ms(20), host.ms(64)) == (3.0, 3.0, 10.0, 10.0)


def test_a_fixed_share_makes_longer_windows_worth_their_rows():
    """Rows at 1 ms each beside a step of 1 ms: few pay; beside 30 ms more, many do."""
    table = CostTable(
        draft=BlockCost.of_any_width((1, 4), (0.1, 0.1)),
        verify=Surface((1, 40), (128,), ((1.0,), (40.0,))),
        rest=BlockCost.of_any_width((1, 4), (0.1, 0.1)),
        no_draft=None,
    )
    costs = StepCosts(table, max_requests=4, gamma=7)
    batch = Batch(0, np.array([1]), np.array([1]), 128, 7)
    host = HostTime()
    planner = Searching(Outlook(ConfidenceRelay(8, 7, 1), costs, host=host), costs)
    alone = planner.plan(batch)
    host.add(1, 30.0)
    beside = planner.plan(batch)
    assert beside.budget > alone.budget
    assert beside.predicted_ms > 30.0
