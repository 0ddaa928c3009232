"""Predicted against measured step time: only steps that followed one another count."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_dspark.core.calibration_live import LiveCalibration
from sglang_dspark.core.plan import Batch, Plan
from sglang_dspark.engine.metrics import StepMetrics
from sglang_dspark.engine.planner import LaunchedStep

ONE = np.array([1])


@pytest.mark.parametrize(("follows_prefill", "number", "counted"), [
    (False, 1, 1),
    (True, 1, 0),
    (False, 2, 0),
])  # fmt: skip
def test_a_step_is_compared_only_where_nothing_lay_behind_it(follows_prefill, number, counted):
    metrics = StepMetrics(4)
    plan = Plan(True, 4, 5, 9.0, 2.0, "search")
    metrics.note_launch(LaunchedStep(plan, Batch(0, ONE, ONE, 10, 4)))
    later = LaunchedStep(plan, Batch(number, ONE, ONE, 12, 4), follows_prefill=follows_prefill)
    metrics.note_launch(later)
    assert metrics.snapshot(LiveCalibration(4))["priced_steps"] == counted
