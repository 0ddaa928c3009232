"""The start-up table's clock: what slows the whole machine must not look like a dear point."""

import numpy as np

from sglang_dspark.engine.reference import ReferenceWork
from sglang_dspark.engine.start_up import SteadyClock


class Product:
    """A reference whose times are given."""

    def __init__(self, *times_ms):
        self._times_ms = iter(times_ms)

    def time_ms(self):
        return next(self._times_ms)


def test_a_slow_moment_cancels():
    clock = SteadyClock(Product(0.2, 0.4, 0.2))
    steps = [clock.units(ms) for ms in (np.array([20.0, 5.0]), np.array([40.0, 10.0]), 20.0)]
    assert clock.unit_ms == 0.2
    assert (clock.unit_ms * steps[0]).tolist() == (clock.unit_ms * steps[1]).tolist() == [20.0, 5.0]
    assert clock.unit_ms * steps[2] == 20.0


def test_where_steps_end_unseen_times_are_taken_as_they_are():
    clock = SteadyClock(None)
    assert clock.units(np.array([20.0])).tolist() == [20.0] and clock.unit_ms == 1.0


def test_the_product_takes_a_time():
    assert 0.0 < ReferenceWork().time_ms() < 1000.0
