"""Losslessness by enumeration in float64: right rules to 1e-9, wrong rules visibly off."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sglang_dspark.core.accept import correction_weights, keep_probability, transition_law
from tests.core.lossless import Model, deviation, output_law

TWO_REQUESTS = {"num_reqs": 2, "num_rounds": 4, "num_tokens": 4}


class Fixed:
    """The same window every step."""

    def __init__(self, *lens):
        self.lens = lens

    def windows(self, memory, blocks):
        return [(1.0, self.lens)]

    def remember(self, blocks):
        return None


class Random:
    """Every window 0..gamma with its own probability, independent of everything."""

    def windows(self, memory, blocks):
        weights = (0.2, 0.3, 0.5)
        return [
            (float(np.prod([weights[n] for n in lens])), lens)
            for lens in product(range(3), repeat=len(blocks))
        ]

    def remember(self, blocks):
        return None


def admit(blocks, budget):
    """Top-K over the current survivals; inclusion of (r, k) depends on drafts before k only."""
    slots = sorted((-s, k, r) for r, b in enumerate(blocks) for k, s in enumerate(b.survival))
    lens = [0] * len(blocks)
    for _, _, r in slots[:budget]:
        lens[r] += 1
    return tuple(lens)


class LaggedBudget:
    """How many from the *previous* step's confidences, which ones from the current.

    All or little, like a search over a staircase: the budget is worth it from some total on.
    (A count of survivals above a threshold would be causal even without the lag.)
    """

    def windows(self, memory, blocks):
        return [(1.0, admit(blocks, 2 if memory is None else memory))]

    def remember(self, blocks):
        return 4 if sum(s for b in blocks for s in b.survival) > 1.2 else 0


class UnlaggedBudget(LaggedBudget):
    """Wrong: the budget sees confidences computed from the drafts it admits."""

    def windows(self, memory, blocks):
        return [(1.0, admit(blocks, self.remember(blocks)))]


def residual_after_used_up_window(drafts, draft_probs, target_probs, draft_len):
    law = transition_law(drafts, draft_probs, target_probs, draft_len)
    if draft_len < len(drafts):
        weights = correction_weights(target_probs[draft_len], draft_probs[draft_len])
        law[draft_len] = law[draft_len].sum() * weights / weights.sum()
    return law


def bonus_from_row(shift):
    def law_with_shift(drafts, draft_probs, target_probs, draft_len):
        law = transition_law(drafts, draft_probs, target_probs, draft_len)
        law[draft_len] = law[draft_len].sum() * target_probs[draft_len + shift]
        return law

    return law_with_shift


PLANNERS = {
    "fixed-0-2": Fixed(0, 2),
    "fixed-1-1": Fixed(1, 1),
    "fixed-2-2": Fixed(2, 2),
    "random": Random(),
    "lagged": LaggedBudget(),
}


@pytest.mark.parametrize("greedy_drafts", [False, True], ids=["sampled", "greedy"])
@pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)
def test_two_requests_are_lossless(planner, greedy_drafts):
    model = Model(vocab=2, gamma=2, seed=3, greedy_drafts=greedy_drafts)
    joint = output_law(model, planner, **TWO_REQUESTS)
    assert abs(sum(joint.values()) - 1) < 1e-9
    assert deviation(model, joint) < 1e-9


@pytest.mark.parametrize("greedy_drafts", [False, True], ids=["sampled", "greedy"])
@pytest.mark.parametrize("planner", [Fixed(1), Fixed(2), Random(), LaggedBudget()])
def test_three_tokens_are_lossless(planner, greedy_drafts):
    model = Model(vocab=3, gamma=2, seed=5, greedy_drafts=greedy_drafts)
    joint = output_law(model, planner, num_reqs=1, num_rounds=4, num_tokens=4)
    assert deviation(model, joint) < 1e-9


def test_windows_of_the_lagged_budget_do_vary():
    """The planner above is not secretly a constant."""
    model = Model(vocab=2, gamma=2, seed=3)
    pairs = list(product(model.blocks((0,)), model.blocks((1,))))
    budgets = {LaggedBudget().remember(blocks) for blocks in pairs}
    lens = {admit(blocks, 2) for blocks in pairs}
    assert len(budgets) > 1 and len(lens) > 1


WRONG_LAWS = {
    "residual after a used-up window": residual_after_used_up_window,
    "bonus one row early": bonus_from_row(-1),
    "bonus one row late": bonus_from_row(+1),
}


@pytest.mark.parametrize("law", WRONG_LAWS.values(), ids=WRONG_LAWS)
def test_a_wrong_law_is_seen(law):
    model = Model(vocab=2, gamma=2, seed=3)
    joint = output_law(model, Fixed(1, 1), law=law, **TWO_REQUESTS)
    assert deviation(model, joint) > 1e-3


@pytest.mark.parametrize("vocab", [2, 3])
def test_an_argmax_draft_treated_as_sampled_is_seen(vocab):
    model = Model(vocab=vocab, gamma=2, seed=3, greedy_drafts=True, claim_sampled=True)
    joint = output_law(model, Fixed(2), num_reqs=1, num_rounds=4, num_tokens=4)
    assert deviation(model, joint) > 1e-3


def test_a_budget_without_lag_is_seen():
    model = Model(vocab=2, gamma=2, seed=3)
    joint = output_law(model, UnlaggedBudget(), **TWO_REQUESTS)
    assert deviation(model, joint) > 1e-3


P_TARGET = np.array([[0.7, 0.3]])
Q_DRAFT = np.array([[0.5, 0.5]])
FIRST, SECOND = 0, 1


def first_output(drafts, window):
    """P(the first output token is FIRST) of one block under `window` drafts."""
    gamma = len(drafts)
    law = transition_law(
        np.array(drafts), Q_DRAFT.repeat(gamma, 0), P_TARGET.repeat(gamma + 1, 0), window
    )
    return law[0, FIRST] + (law[1:].sum() if drafts[0] == FIRST else 0.0)


def test_appendix_a_a_global_search_over_current_confidences_gives_085_for_070():
    """paper.md, "Why a global search ...": x_1 = A raises c_2, so l = 2; x_1 = B gives l = 0."""
    total = sum(
        0.25 * first_output(drafts, 2 if drafts[0] == FIRST else 0)
        for drafts in product((FIRST, SECOND), repeat=2)
    )
    assert total == pytest.approx(0.85, abs=1e-12)


@pytest.mark.parametrize(("fresh", "expected"), [(True, 0.70), (False, 0.85)])
def test_drafts_keyed_by_absolute_position_break_a_lagged_budget(fresh, expected):
    """paper.md, "Randomness": gamma 3, lag 1. Block 1 (window 0) has computed c_3 from its x_2.

    That draft was for position 2, is discarded, and is x_1 of block 2. If its noise is keyed by
    the position it comes back equal, and the budget of block 2 has seen it.
    """
    total = 0.0
    for old, new in product(product((FIRST, SECOND), repeat=3), repeat=2):
        if not fresh and new[:2] != old[1:]:
            continue
        prob = 0.5 ** (6 if fresh else 4)
        total += prob * first_output(new, 3 if old[1] == FIRST else 0)
    assert total == pytest.approx(expected, abs=1e-12)


def test_law_is_made_of_the_decision_it_describes():
    """`transition_law` and `keep_probability` say the same about the first draft."""
    p, q = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.2, 0.2])
    law = transition_law(np.array([0]), q[None], np.stack([p, p]), 1)
    assert law[1].sum() == pytest.approx(keep_probability(p, q, 0))
    assert law[0] == pytest.approx((1 - 0.2 / 0.6) * np.array([0, 0.3, 0.1]) / 0.4)
