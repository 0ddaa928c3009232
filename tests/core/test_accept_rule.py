import numpy as np
import pytest

from sglang_dspark.core.accept import (
    accept_sampled,
    accept_tokens,
    correction_weights,
    greedy_tokens,
    transition_law,
)
from sglang_dspark.core.draw import inverse_cdf, race

BELOW_ONE = 1.0 - 2.0**-53


def random_laws(rng, gamma=2, vocab=3):
    draft = rng.dirichlet(np.ones(vocab), gamma)
    target = rng.dirichlet(np.ones(vocab), gamma + 1)
    drafts = np.array([rng.choice(vocab, p=q) for q in draft])
    return drafts, draft, target


@pytest.mark.parametrize("point_mass", [False, True])
@pytest.mark.parametrize("draft_len", [0, 1, 2])
def test_decisions_integrate_to_the_law(draft_len, point_mass):
    """Midpoints of a grid of uniforms: the share of each outcome is its probability."""
    drafts, draft, target = random_laws(np.random.default_rng(1))
    draft = None if point_mass else draft
    steps, counts = 30, np.zeros((draft_len + 1, 3))
    grid = (np.arange(steps) + 0.5) / steps
    for u1 in grid:
        for u2 in grid:
            for u3 in grid:
                # A block uses one of the two last draws, so they may share the axis.
                out = accept_sampled(drafts, draft, target, draft_len, np.array([u1, u2]), u3, u3)
                counts[out.accepted, out.next_token] += 1
    law = transition_law(drafts, draft, target, draft_len)
    assert law.sum() == pytest.approx(1.0)
    assert np.abs(counts / steps**3 - law).max() < 3 / steps


@pytest.mark.parametrize("draft_len", [0, 1, 2])
def test_rows_after_the_window_are_never_looked_at(draft_len):
    drafts, draft, target = random_laws(np.random.default_rng(2))
    u = np.array([0.3, 0.9])
    full = accept_sampled(drafts, draft, target, draft_len, u, 0.4, 0.6)
    target[draft_len + 1 :] = np.nan
    draft[draft_len:] = np.nan
    assert accept_sampled(drafts, draft, target, draft_len, u, 0.4, 0.6) == full
    packed = target[: draft_len + 1]
    assert accept_sampled(drafts, draft, packed, draft_len, u, 0.4, 0.6) == full
    law = transition_law(drafts, draft, packed, draft_len)
    assert np.array_equal(law, transition_law(drafts, draft, target, draft_len))


def test_a_used_up_window_draws_the_bonus_and_a_rejection_the_residual():
    p, q = np.array([[0.6, 0.4], [0.0, 1.0], [1.0, 0.0]]), np.array([[0.3, 0.7], [0.5, 0.5]])
    kept = accept_sampled(np.array([0, 0]), q, p, 1, np.array([0.9, 0.9]), 0.1, 0.1)
    assert (kept.accepted, kept.next_token) == (1, 1)  # row 1 of the target, all on token 1
    thrown = accept_sampled(np.array([1, 0]), q, p, 2, np.array([0.99, 0.9]), 0.999, 0.999)
    assert (thrown.accepted, thrown.next_token) == (0, 0)  # p - q is positive at 0 only


def test_a_residual_without_mass_falls_back_to_the_target():
    """Equal laws whose rounded sums differ: a rejection is possible, the residual is empty."""
    p = np.array([[0.5, 0.5 - 1e-9]])
    q = np.array([[0.5, 0.5]])
    out = accept_sampled(np.array([1]), q, np.vstack([p, p]), 1, np.array([BELOW_ONE]), 0.9, 0.9)
    assert (out.accepted, out.next_token) == (0, 1)
    assert np.array_equal(correction_weights(p[0], q[0]), p[0])
    assert transition_law(np.array([1]), q, np.vstack([p, p]), 1).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("u", [2.0**-53, 0.5, BELOW_ONE])
def test_a_token_without_probability_is_neither_kept_nor_drawn(u):
    p = np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    q = np.array([[1.0, 0.0, 0.0]])
    out = accept_sampled(np.array([0]), q, p, 1, np.array([u]), u, u)
    assert (out.accepted, out.next_token) == (0, 1)
    assert inverse_cdf(np.array([0.0, 1e-300, 0.0]), u) == 1


@pytest.mark.parametrize("total", [1.0, 1.0 - 2.0**-53, 0.1, 3.0, 1e-30])
def test_the_largest_uniform_draws_the_last_token_that_has_weight(total):
    weights = np.array([0.25, 0.0, 0.75, 0.0]) * total
    assert inverse_cdf(weights, BELOW_ONE) == 2


def test_deterministic_rows_accept_by_equality():
    target = np.array([4, 5, 6, 7])
    cases = [((4, 5, 6), 3, 3, 7), ((4, 5, 6), 2, 2, 6), ((4, 9, 6), 3, 1, 5), ((4, 5, 6), 0, 0, 4)]
    for drafts, draft_len, accepted, token in cases:
        out = accept_tokens(np.array(drafts), target, draft_len)
        assert (out.accepted, out.next_token) == (accepted, token)


def test_ties_go_to_the_lowest_id():
    assert greedy_tokens(np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])).tolist() == [1, 0]
    assert race(np.array([0.0, 0.5, 0.5]), np.array([1.0, 2.0, 2.0])) == 1


def test_coupled_drafts_and_targets_agree_where_their_laws_do():
    """One noise for both: equal laws always agree, and the draw follows the target's law."""
    rng = np.random.default_rng(4)
    p = np.array([0.5, 0.3, 0.2])
    noise = rng.exponential(size=(20_000, 3))
    tokens = np.array([race(p, e) for e in noise])
    assert np.abs(np.bincount(tokens) / len(tokens) - p).max() < 0.01
