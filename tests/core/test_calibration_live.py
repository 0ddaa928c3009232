"""The error shown while serving, and the factors that acceptance teaches the planner."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.core.calibration_live import LiveCalibration
from sglang_dspark.core.feedback import AcceptanceFeedback
from sglang_dspark.core.survival import survivals

GAMMA = 4


def served(rng, n, confidence=None, true=None):
    """(survival, accepted) of n blocks whose true conditional acceptance is `true`."""
    c = rng.random((n, GAMMA)) if confidence is None else np.full((n, GAMMA), confidence)
    p = c if true is None else np.full((n, GAMMA), true)
    accepted = np.cumprod(rng.random((n, GAMMA)) < p, axis=1).sum(1)
    return survivals(c), accepted


def test_it_equals_the_definition():
    rng = np.random.default_rng(0)
    live = LiveCalibration(GAMMA, bins=15)
    survival, accepted = served(rng, 3000)
    lens = rng.integers(0, GAMMA + 1, size=3000)
    for part in np.array_split(np.arange(3000), 7):
        live.add(survival[part], lens[part], np.minimum(accepted, lens)[part])
    for k in range(GAMMA):
        tried = lens > k
        s, taken = survival[tried, k].astype(np.float64), accepted[tried] > k
        bins = np.minimum((s * 15).astype(int), 14)
        ece = sum(abs(s[bins == b].sum() - taken[bins == b].sum()) for b in range(15)) / tried.sum()
        assert live.ece[k] == pytest.approx(ece)
        assert live.pairs[k] == tried.sum()
        assert live.bias[k] == pytest.approx(s.mean() - taken.mean())


def test_a_perfect_head_shows_little_and_a_confident_one_its_bias():
    rng = np.random.default_rng(1)
    good, bad = LiveCalibration(GAMMA), LiveCalibration(GAMMA)
    survival, accepted = served(rng, 20_000)
    good.add(survival, np.full(20_000, GAMMA), accepted)
    survival, accepted = served(rng, 20_000, confidence=0.9, true=0.6)
    bad.add(survival, np.full(20_000, GAMMA), accepted)
    assert good.ece.max() < 0.02
    assert bad.ece[0] == pytest.approx(0.3, abs=0.02) == bad.bias[0]


def test_memory_is_bounded_and_old_traffic_fades():
    rng = np.random.default_rng(2)
    live = LiveCalibration(GAMMA, window=1000)
    for true in (0.2, 0.9):
        for _ in range(60):
            survival, accepted = served(rng, 100, confidence=0.9, true=true)
            live.add(survival, np.full(100, GAMMA), accepted)
    assert live.pairs.max() <= 1000
    assert live.ece[0] < 0.05


def test_positions_without_pairs_say_so():
    live = LiveCalibration(GAMMA)
    live.add(survivals(np.full((5, 2), 0.5)), [1] * 5, [1] * 5)
    assert np.isnan(live.ece).tolist() == [False, True, True, True]
    live.clear()
    assert np.isnan(live.ece).all() and live.pairs.sum() == 0


def test_factors_approach_observed_over_predicted_and_never_increase():
    rng, feedback = np.random.default_rng(3), AcceptanceFeedback(GAMMA)
    assert feedback.factors(32).tolist() == [1.0] * GAMMA
    for _ in range(400):
        survival, accepted = served(rng, 32, confidence=0.9, true=0.6)
        feedback.observe(survival, np.full(32, GAMMA), accepted)
    expected = [(0.6 / 0.9) ** k for k in range(1, GAMMA + 1)]
    assert feedback.factors(32) == pytest.approx(expected, abs=0.05)
    assert np.all(np.diff(feedback.factors(32)) <= 0)


def test_corrected_survivals_stay_ordered_and_below_1():
    rng, feedback = np.random.default_rng(4), AcceptanceFeedback(GAMMA)
    for _ in range(200):
        survival, accepted = served(rng, 32, confidence=0.5, true=0.95)
        feedback.observe(survival, np.full(32, GAMMA), accepted)
    assert feedback.factors(32)[0] > 1
    survival = survivals(rng.random((8, GAMMA)))
    feedback.correct(survival)
    assert survival.max() <= 1 and np.all(np.diff(survival, axis=1) <= 0)


def test_what_was_not_verified_teaches_nothing():
    feedback = AcceptanceFeedback(GAMMA)
    feedback.observe(survivals(np.full((8, GAMMA), 0.9)), np.zeros(8, int), np.zeros(8, int))
    assert feedback.factors(32).tolist() == [1.0] * GAMMA


def test_the_last_few_requests_of_a_crowd_say_nothing_about_the_next_one():
    """They are its slowest; the next 32 once began in plain decode because of them."""
    rng, feedback = np.random.default_rng(5), AcceptanceFeedback(GAMMA)
    for num_requests, true, steps in ((32, 0.9, 100), (2, 0.2, 60), (1, 0.1, 60)):
        for _ in range(steps):
            survival, accepted = served(rng, num_requests, confidence=0.9, true=true)
            feedback.observe(survival, np.full(num_requests, GAMMA), accepted)
    assert feedback.factors(1)[0] < 0.4
    assert feedback.factors(20)[0] > 0.9


def test_a_crowd_not_seen_before_believes_the_nearest_one():
    rng, feedback = np.random.default_rng(6), AcceptanceFeedback(GAMMA)
    for _ in range(200):
        survival, accepted = served(rng, 8, confidence=0.9, true=0.3)
        feedback.observe(survival, np.full(8, GAMMA), accepted)
    expected = feedback.factors(8)
    assert feedback.factors(64).tolist() == expected.tolist()
    survival, accepted = served(rng, 64, confidence=0.9, true=0.3)
    feedback.observe(survival, np.full(64, GAMMA), accepted)
    assert feedback.factors(64) == pytest.approx(expected, abs=0.15)
