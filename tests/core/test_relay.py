"""What the ring lends, and to whom (faults.md C4, D4)."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.running import SurvivalPrior, TypicalSurvival, first_guess

GAMMA, SLOTS = 3, 6


def ids(*values):
    return np.array(values, dtype=np.int64)


def rows(*firsts):
    """Survivals that halve: one row per value."""
    return np.array([[f, f / 2, f / 4] for f in firsts], dtype=np.float32)


@pytest.fixture(params=[1, 2])
def lag(request):
    return request.param


@pytest.fixture
def relay(lag):
    return ConfidenceRelay(SLOTS, GAMMA, lag)


def test_a_step_reads_what_the_step_lag_before_it_published(relay, lag):
    for step in range(6):
        relay.publish(step, ids(4, 1), ids(7, 7), rows(0.1 * step, 0.05 * step))
    read = relay.read(5 + lag, ids(4, 1), ids(7, 7), GAMMA)
    assert read.known.all() and np.array_equal(read.survival, rows(0.5, 0.25))
    if lag == 2:  # the ring still holds the step before
        read = relay.read(4 + lag, ids(4, 1), ids(7, 7), GAMMA)
        assert np.array_equal(read.survival, rows(0.4, 0.2))


def test_a_step_never_reads_itself_or_a_later_one(relay, lag):
    relay.publish(5, ids(0), ids(1), rows(0.9))
    for step in (4, 5, 5 + lag - 1):
        assert not relay.read(step, ids(0), ids(1), GAMMA).known.any() or step - lag == 5
    assert relay.read(5 + lag, ids(0), ids(1), GAMMA).known.all()


def test_lag_0_is_refused():
    with pytest.raises(ValueError, match="must not see its own step"):
        ConfidenceRelay(SLOTS, GAMMA, 0)


def test_requests_may_come_in_another_order_leave_and_join(relay, lag):
    relay.publish(0, ids(4, 1, 2), ids(7, 8, 9), rows(0.8, 0.6, 0.4))
    read = relay.read(lag, ids(2, 4, 5), ids(9, 7, 3), GAMMA)
    assert read.known.tolist() == [True, True, False]
    assert np.array_equal(read.survival[:2], rows(0.4, 0.8))


def test_a_slot_that_changed_hands_lends_nothing(relay, lag):
    relay.publish(0, ids(4, 1), ids(7, 7), rows(0.8, 0.6))
    read = relay.read(lag, ids(4, 1), ids(8, 7), GAMMA)
    assert read.known.tolist() == [False, True]
    assert not np.array_equal(read.survival[0], rows(0.8)[0])
    assert read.survival[0] == pytest.approx(relay.prior.curve)


def test_a_late_publish_is_stamped_with_the_generation_of_its_launch(relay, lag):
    """The slot changed hands while the step was in flight."""
    relay.publish(0, ids(4), ids(7), rows(0.8))
    assert not relay.read(lag, ids(4), ids(8), GAMMA).known.any()


def test_a_retracted_request_comes_back_as_a_new_one(relay, lag):
    relay.publish(0, ids(4), ids(7), rows(0.8))
    relay.publish(1, ids(1), ids(7), rows(0.2))  # slot 4 was retracted
    read = relay.read(1 + lag, ids(4, 1), ids(9, 7), GAMMA)
    assert read.known.tolist() == [False, True]


def test_a_flush_forgets_what_is_stored_and_what_is_in_flight(relay, lag):
    """Generations start anew after a flush: equal numbers mean nothing."""
    relay.publish(0, ids(4), ids(1), rows(0.8))
    relay.flush(1)
    relay.publish(1, ids(4), ids(1), rows(0.8))  # launched before the flush
    for step in range(6):
        assert not relay.read(step, ids(4), ids(1), GAMMA).known.any()
    read = relay.read(2, ids(4), ids(1), GAMMA)
    assert read.survival[0] == pytest.approx(relay.prior.curve)  # a new request, not a known one
    relay.publish(2, ids(4), ids(1), rows(0.3))
    assert np.array_equal(relay.read(2 + lag, ids(4), ids(1), GAMMA).survival, rows(0.3))


def test_a_skipped_step_lends_nothing_old(relay, lag):
    """No drafts in step 1: the ring must not give step 0, nor the step a whole turn ago."""
    for step in range(4):
        relay.publish(step, ids(4, 1), ids(7, 7), rows(0.9, 0.1))
    for step in range(4 + lag, 12):
        read = relay.read(step, ids(4, 1), ids(7, 7), GAMMA)
        assert not read.known.any()
        assert read.survival == pytest.approx(np.tile(relay.typical.curve, (2, 1)))
    # Towards the batch's mean from the first guess: like the others, not like itself.
    assert relay.typical.curve == pytest.approx(rows(0.5)[0], abs=0.1)


def test_a_request_that_sat_out_a_step_has_no_row_of_its_own(relay, lag):
    relay.publish(0, ids(4, 1), ids(7, 7), rows(0.9, 0.1))
    relay.publish(1, ids(1), ids(7), rows(0.2))
    read = relay.read(1 + lag, ids(4, 1), ids(7, 7), GAMMA)
    assert read.known.tolist() == [False, True]
    assert read.survival[0] == pytest.approx(relay.typical.curve)


def test_a_new_request_gets_a_learned_prior_not_1(relay, lag):
    before = relay.read(lag, ids(0), ids(1), GAMMA)
    assert not before.known.any()
    assert before.survival[0] == pytest.approx(first_guess(GAMMA)) and before.survival[0, 0] < 1
    for step in range(400):  # a new request every step, all alike
        relay.publish(step, ids(step % SLOTS), ids(step), rows(0.4))
    learned = relay.read(400 + lag, ids(0), ids(999), GAMMA).survival[0]
    assert learned == pytest.approx(rows(0.4)[0], abs=0.01)


def test_later_steps_of_a_request_do_not_teach_the_prior(relay):
    relay.publish(0, ids(0), ids(1), rows(0.4))
    after_first = relay.prior.curve.copy()
    for step in range(1, 50):
        relay.publish(step, ids(0), ids(1), rows(0.9))
    assert np.array_equal(relay.prior.curve, after_first)


def test_a_gamma_limit_may_change_between_steps(relay, lag):
    relay.publish(0, ids(4), ids(7), rows(0.8)[:, :2])
    assert np.array_equal(relay.read(lag, ids(4), ids(7), 1).survival, rows(0.8)[:, :1])
    wide = relay.read(lag, ids(4), ids(7), GAMMA).survival
    # What was not proposed is foretold: as usual blocks go on, 0.7 at first.
    assert wide[0].tolist() == pytest.approx([0.8, 0.4, 0.4 * 0.7])


def test_what_is_lent_is_a_copy(relay, lag):
    mine = rows(0.8)
    relay.publish(0, ids(4), ids(7), mine)
    mine[:] = 0.0
    relay.read(lag, ids(4), ids(7), GAMMA).survival[:] = 0.0
    assert np.array_equal(relay.read(lag, ids(4), ids(7), GAMMA).survival, rows(0.8))


def test_nobody_publishes_nothing(relay, lag):
    relay.publish(0, ids(), ids(), np.zeros((0, GAMMA), dtype=np.float32))
    assert not relay.read(lag, ids(0), ids(0), GAMMA).known.any()


def test_a_probe_after_a_pause_counts_more_but_one_row_only_a_third():
    typical = TypicalSurvival(GAMMA)
    for step in range(400):
        typical.add(step, rows(0.2))
    assert typical.curve == pytest.approx(rows(0.2)[0], abs=1e-6)
    typical.add(400, rows(0.8))
    assert typical.curve[0] == pytest.approx(0.2 + 0.6 / 16)
    before = typical.curve[0]
    typical.add(500, rows(0.8))
    assert typical.curve[0] == pytest.approx(before + (0.8 - before) / 3)
    typical.add(600, rows(*[0.9] * 32))
    assert typical.curve[0] == pytest.approx(0.9, abs=0.04)


def test_the_prior_never_increases_along_a_block():
    prior = SurvivalPrior(GAMMA)
    for _ in range(50):
        prior.add(rows(0.1)[:, :1])  # a gamma limit of 1
    assert np.all(np.diff(prior.curve) <= 0)
