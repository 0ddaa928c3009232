"""Which drafts: top-K over the current survivals (paper.md, "The scheduler")."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.core.allocate import allocate
from sglang_dspark.core.survival import survivals


def test_the_best_drafts_of_the_batch_are_taken():
    survival = np.array([[0.9, 0.5, 0.1], [0.8, 0.7, 0.6], [0.2, 0.0, 0.0]])
    expected = {0: [0, 0, 0], 1: [1, 0, 0], 3: [1, 2, 0], 5: [2, 3, 0], 6: [2, 3, 1], 9: [3, 3, 3]}
    for budget, lens in expected.items():
        assert allocate(survival, budget).tolist() == lens


def test_ties_go_to_the_earlier_position_then_to_the_lower_row():
    tied = np.full((3, 2), 0.5)
    assert [allocate(tied, n).tolist() for n in range(1, 6)] == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
        [2, 1, 1],
        [2, 2, 1],
    ]


@pytest.mark.parametrize("seed", range(30))
def test_it_is_a_prefix_and_the_budget_is_used_up_exactly(seed):
    rng = np.random.default_rng(seed)
    survival = survivals(np.round(rng.random((int(rng.integers(1, 9)), 7)) * 3) / 3)
    for budget in (0, 1, 5, survival.size // 2, survival.size, survival.size + 9):
        lens = allocate(survival, budget)
        assert lens.sum() == min(budget, survival.size)
        taken = np.arange(7) < lens[:, None]
        if budget < survival.size and taken.any():  # nothing left out is better than what is in
            assert survival[~taken].max() <= survival[taken].min()


def test_current_survivals_decide_even_when_the_budget_is_old():
    """faults.md C4: the budget may lag, the split must not."""
    now = np.array([[0.1, 0.0], [0.9, 0.8]])
    assert allocate(now, 2).tolist() == [0, 2]
    assert allocate(now[::-1], 2).tolist() == [2, 0]


def test_nothing_to_take():
    assert allocate(np.zeros((0, 7)), 3).tolist() == []
    assert allocate(np.zeros((2, 0)), 3).tolist() == [0, 0]
    assert allocate(np.ones((2, 3)), -1).tolist() == [0, 0]
