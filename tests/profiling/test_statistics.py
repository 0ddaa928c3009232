from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.profiling.statistics import paired_ratio, repeated_share


def test_the_ratio_is_the_geometric_mean_of_the_rounds():
    ratio = paired_ratio([2.0, 8.0], [1.0, 1.0])
    assert ratio.value == pytest.approx(4.0)
    assert ratio.low <= ratio.value <= ratio.high


def test_swapping_the_arms_inverts_the_ratio():
    rng = np.random.default_rng(0)
    ours, control = rng.uniform(80, 120, 12), rng.uniform(40, 60, 12)
    there, back = paired_ratio(ours, control), paired_ratio(control, ours)
    assert there.value == pytest.approx(1 / back.value)


def test_a_slow_phase_of_the_machine_hits_both_arms_of_a_round():
    slow = np.array([1.0, 1.0, 0.3, 0.3, 0.3, 1.0, 1.0, 0.5, 1.0, 1.0])
    wobble = np.linspace(0.99, 1.01, 10)
    ratio = paired_ratio(2.0 * slow * wobble, slow)
    assert 1.97 < ratio.low < 2.0 < ratio.high < 2.03


def test_no_spread_gives_a_point():
    ratio = paired_ratio([3.0, 6.0], [1.0, 2.0])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((3.0, 3.0, 3.0))


def test_the_interval_covers_the_truth_most_of_the_time():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        noise = np.exp(rng.normal(0, 0.1, (2, 12)))
        ratio = paired_ratio(1.6 * noise[0], noise[1])
        hits += ratio.low <= 1.6 <= ratio.high
    assert hits >= 50  # 95 % nominal; the bootstrap of 12 rounds is a little narrow


@pytest.mark.parametrize(("ours", "control"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_too_few_or_unequal_rounds_are_refused(ours, control):
    with pytest.raises(ValueError, match="rounds"):
        paired_ratio(ours, control)


def test_repeated_share_of_a_loop_and_of_plain_text():
    assert repeated_share(list(range(100))) == 0.0
    assert repeated_share([1, 2, 3] * 40) > 0.9
    assert repeated_share([1, 2, 3]) == 0.0
