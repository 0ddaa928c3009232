"""From trace lines to medians: wrong pins refused, outliers out, intervals that tell the truth."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sglang_dspark.profiling.profile.cells import Cell
from sglang_dspark.profiling.profile.lines import (
    WARM_UPS,
    StepLine,
    TraceError,
    check_clock,
    executed,
    read_trace,
    refusal,
)
from sglang_dspark.profiling.profile.samples import half_width, measure, reject_outliers
from sglang_dspark.profiling.profile.speed import MachineSpeed

CELL = Cell(requests=4, context=256, budget=8)


def step(worker_ms=20.0, requests=4, width=7, rows=12, context=256, gap_ms=1.5):
    return StepLine(requests, context, width, rows, 4.0, worker_ms - 6.0, worker_ms, gap_ms)


def trace_line(**changes):
    record = {"step": 3, "slots": [8, 5, 6, 7], "context_tokens": 40, "width": 7, "rows": 24}
    record |= {"draft_ms": 4.0, "target_ms": 17.5, "worker_ms": 23.75, "gap_ms": None, "budget": 20}
    return json.dumps(record | changes)


def test_a_trace_is_read_with_its_header_and_its_end():
    text = "\n".join(['{"schema":"sglang-dspark-trace-1"}', trace_line(), '{"truncated":true}'])
    (line,) = read_trace(text)
    assert line == StepLine(4, 40, 7, 24, 4.0, 17.5, 23.75, None)
    assert line.rest_ms == 2.25
    (timed,) = read_trace(trace_line(reference_ms=0.25))
    assert timed.reference_ms == 0.25


@pytest.mark.parametrize("bad", ["{", '{"step": 1}', trace_line(slots=None)])
def test_a_foreign_trace_is_refused(bad):
    with pytest.raises(TraceError, match="line 2"):
        read_trace(f"{trace_line()}\n{bad}")


def test_only_steps_with_all_requests_and_the_pinned_rows_count():
    early = [step(requests=3, rows=11)]
    found = executed([*early, step(rows=32), *[step()] * (WARM_UPS + 3)], CELL)
    assert found.lines == (step(),) * 3
    assert found.strangers == (step(rows=32),)
    assert refusal([found], CELL) is None  # one step was in flight when the pin was set


def test_a_pin_that_was_not_executed_is_refused_with_what_was():
    found = executed([step(rows=32)] * 10, CELL)
    assert found.lines == ()
    assert refusal([found], CELL) == (
        "the pin was not executed: 12 rows were asked for, "
        "the target was given 32 rows of blocks of 7"
    )


def test_a_drafting_step_is_no_no_draft_step_though_the_rows_agree():
    plain = Cell(4, 256, None)
    found = executed([step(rows=4)] * 10, plain)
    assert found.lines == () and refusal([found], plain) is not None
    assert len(executed([step(rows=4, width=0)] * 10, plain).lines) == 10 - WARM_UPS


def test_times_of_an_asynchronous_device_are_refused():
    check_clock([step(gap_ms=None), step(), step(), step()])
    with pytest.raises(TraceError, match="no step times"):
        check_clock([step(gap_ms=None)] * 4)


def test_a_step_that_was_interrupted_is_left_out():
    times = [20.0, 20.2, 19.9, 95.0, 20.1, 20.0, 3.0, 20.3]
    kept = [line.worker_ms for line in reject_outliers([step(t) for t in times])]
    assert kept == [20.0, 20.2, 19.9, 20.1, 20.0, 20.3]


def test_equal_times_do_not_make_their_neighbour_an_outlier():
    assert len(reject_outliers([step(20.0)] * 6 + [step(20.1)])) == 7


def test_a_repeat_counts_once_however_many_steps_it_has():
    found = measure(CELL, [[step(10.0)] * 50, [step(20.0)] * 3, [step(21.0)] * 3, []])
    assert found.step_ms == 20.0
    assert (found.repeats, found.samples, found.rejected) == (3, 56, 0)
    assert (found.draft_ms, found.target_ms, found.rest_ms) == (4.0, 14.0, 2.0)
    assert (found.context, found.gap_ms) == (256, 1.5)


def test_a_cell_without_steps_is_an_error():
    with pytest.raises(ValueError, match="no step was measured"):
        measure(CELL, [[]])


def test_the_interval_grows_with_what_differs_between_repeats():
    rng = np.random.default_rng(1)
    steady = [rng.normal(20, 0.2, 10) for _ in range(5)]
    drifting = [steps + shift for steps, shift in zip(steady, (0, 3, -2, 1, 4), strict=True)]
    assert 0.0 < half_width(steady) < 0.3 < 1.0 < half_width(drifting)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(100):
        repeats = [rng.normal(20 + rng.normal(0, 0.5), 0.3, 10) for _ in range(8)]
        middle = float(np.median([np.median(r) for r in repeats]))
        covered += abs(middle - 20) <= half_width(repeats)
    assert 85 <= covered <= 100


def test_a_slow_minute_of_the_machine_is_divided_out():
    """The second visit: everything, the fixed product too, takes half as long again."""
    usual = [step()._replace(reference_ms=0.2)] * 6
    slow = [step(30.0)._replace(draft_ms=6.0, gap_ms=2.25, reference_ms=0.3)] * 5
    slow += [step(30.0)._replace(draft_ms=6.0, gap_ms=2.25, reference_ms=9.0)]  # a hiccup of it
    visits = [usual, slow, usual, []]
    speed = MachineSpeed.of(visits)
    assert (speed.usual_ms, round(speed.slow_ms, 3)) == (0.2, 0.28)
    assert measure(CELL, visits).relative_half_width > 0.1
    found = measure(CELL, [speed.steady(lines) for lines in visits if lines])
    assert found.step_ms == pytest.approx(20.0) and found.relative_half_width < 1e-9
    assert found.draft_ms == pytest.approx(4.0) and found.gap_ms == pytest.approx(1.5)


def test_one_visit_without_the_product_leaves_all_times_as_they_are():
    timed = [step()._replace(reference_ms=0.2)] * 4
    assert MachineSpeed.of([timed, [step()] * 4]) is None
    assert MachineSpeed.of([timed, [*timed, step()]]) is None
    assert MachineSpeed.of([]) is None


def test_one_repeat_or_two_are_never_tight():
    lines = [step()] * 8
    assert not measure(CELL, [lines] * 2).is_tight(0.05)
    assert measure(CELL, [lines] * 3).is_tight(0.05)
    assert not measure(CELL, [[step(t)] * 8 for t in (20, 25, 30)]).is_tight(0.05)
