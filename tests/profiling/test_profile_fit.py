"""A made-up machine whose prices are known: does the table find them again?"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sglang_dspark.core.cost_schema import dump_table, parse_table
from sglang_dspark.core.cost_verdict import Server, judge
from sglang_dspark.profiling.profile.cells import Cell, Limits, make_plan
from sglang_dspark.profiling.profile.fit import FitError, fit_table, pricer
from sglang_dspark.profiling.profile.lines import StepLine
from sglang_dspark.profiling.profile.samples import measure
from sglang_dspark.profiling.profile.surface import fit_curve, fit_surface, rising

SERVER = {
    **{"device": "made up", "isa": "avx2", "cores": 2, "threads": 2, "dtype": "float32"},
    **{"target": "aa", "draft": "bb", "gamma": 7, "tp": 1, "engine": "sglang 0"},
    "attention_backend": "none",
}
LIMITS = Limits(gamma=7, max_requests=16, context_len=8192, capacity=None)
PLAN = make_plan(LIMITS, (512, 8192), steps=8, fine=True)


def draft_ms(requests, width=7):
    return 3.0 + 0.1 * requests * (1 + width) / 8


def verify_ms(rows, context):
    """A staircase of 16 rows over a slope, and context that weighs more with more rows."""
    return 10.0 + 2.0 * math.ceil(rows / 16) + 0.05 * rows + context * (5e-4 + 4e-6 * rows)


def rest_ms(requests):
    return 1.5 + 0.05 * requests


def true_ms(cell, context):
    if cell.budget is None:
        return verify_ms(cell.requests, context) + 1.0
    return (
        draft_ms(cell.requests, cell.width or 7)
        + verify_ms(cell.rows, context)
        + rest_ms(cell.requests)
    )


def measured_cells(noise=0.0, plan=PLAN, seed=0):
    """Every cell of the plan, four repeats; the context has grown by some tokens."""
    rng = np.random.default_rng(seed)
    found = []
    for cell in plan.cells:
        context = cell.context + 5 * cell.requests
        repeats = []
        for _ in range(4):
            slow = 1 + abs(rng.normal(0, noise / 2))
            factors = slow * (1 + noise * rng.standard_normal(8))
            repeats.append([_line(cell, context, float(f)) for f in factors])
        found.append(measure(cell, repeats))
    return found


def _line(cell, context, factor):
    drafts = cell.budget is not None
    parts = (
        (draft_ms(cell.requests, cell.width or 7), verify_ms(cell.rows, context))
        if drafts
        else (0.0, 5.0)
    )
    return StepLine(
        cell.requests,
        context,
        (cell.width or 7) if drafts else 0,
        cell.rows,
        *(p * factor for p in parts),
        true_ms(cell, context) * factor,
        1.0,
    )


def fit(measured, held_out=PLAN.held_out):
    return fit_table(measured, held_out, server=SERVER, date="2020-01-01", command="made up")


def test_a_made_up_table_is_found_again_within_5_percent_despite_noise():
    fitted = fit(measured_cells(noise=0.05))
    price = pricer(fitted.table, measured_cells(), 7)
    errors = [price(c, c.context) / true_ms(c, c.context) - 1 for c in PLAN.cells]
    assert np.median(np.abs(errors)) < 0.03
    for cell, error in zip(PLAN.cells, errors, strict=True):
        # A staircase cannot be met between its measured sizes; all else must be.
        assert abs(error) < 0.05 or cell in PLAN.held_out, cell
    assert max(map(abs, errors)) < 0.12


def test_the_held_out_context_is_foretold_and_reported():
    fitted = fit(measured_cells(noise=0.02))
    context = PLAN.held_out_context
    assert context not in fitted.table.verify.contexts
    assert len([c for c in fitted.held_out if c.measured.cell.context == context]) > 20
    assert fitted.median_error(held_out=True, context=context) < 0.05
    assert fitted.median_error(held_out=True) < 0.05
    assert all(c.is_within for c in fitted.held_out)


def test_a_held_out_cell_that_the_table_gets_wrong_is_reported():
    cells = measured_cells()
    wrong = Cell(4, PLAN.held_out_context, 8)
    cells = [
        measure(m.cell, [[_line(m.cell, m.context, 1.5)] * 8] * 4) if m.cell == wrong else m
        for m in cells
    ]
    (outside,) = [c for c in fit(cells).held_out if not c.is_within]
    assert outside.measured.cell == wrong and outside.error == pytest.approx(-1 / 3, abs=0.05)


def test_a_wide_interval_of_its_own_excuses_a_cell():
    cell = Cell(4, PLAN.held_out_context, 8)
    cells = [m for m in measured_cells() if m.cell != cell]
    shaky = measure(cell, [[_line(cell, cell.context, f)] * 8 for f in (0.9, 1.4, 1.4, 2.0)])
    check = next(c for c in fit([*cells, shaky]).held_out if c.measured.cell == cell)
    assert abs(check.error) > 0.2 and check.tolerated > 0.2 and check.is_within


def test_held_out_cells_do_not_move_the_table():
    cells = measured_cells(noise=0.02)
    spoiled = [
        measure(m.cell, [[_line(m.cell, m.context, 9.0)] * 8] * 4) if m.cell in PLAN.held_out else m
        for m in cells
    ]
    tables = [replace(fit(c).table, provenance=None) for c in (spoiled, cells)]
    assert tables[0] == tables[1]


def test_the_table_rises_says_where_it_is_from_and_may_be_used_here():
    table = fit(measured_cells(noise=0.1)).table
    grid = np.array(table.verify.ms)
    assert (np.diff(grid, axis=0) >= 0).all() and (np.diff(grid, axis=1) >= 0).all()
    assert all(list(row) == sorted(row) for row in table.draft.ms)
    assert table.no_draft is not None
    read = parse_table(dump_table(table))
    assert read == table
    assert read.provenance.kind == "profiled"
    assert {"step", "no_draft", "held_out"} == dict(read.provenance.residuals).keys()
    assert judge(read, Server(**SERVER), named_by_user=False).level == "use"


def test_draft_and_rest_are_what_was_timed():
    table = fit(measured_cells()).table
    assert table.draft.at == (1, 2, 4, 8, 16)
    assert table.draft.widths == (1, 2, 3, 4, 5, 7)
    for r, row in zip(table.draft.at, table.draft.ms, strict=True):
        assert row == pytest.approx([draft_ms(r, w) for w in table.draft.widths])
    assert table.rest.widest().ms == pytest.approx([rest_ms(r) for r in table.rest.at])


def test_too_few_cells_are_no_table():
    cells = [m for m in measured_cells() if m.cell.context == 512]
    with pytest.raises(FitError, match="--minutes"):
        fit(cells)
    with pytest.raises(FitError, match="only 0 no-draft cells"):
        fit([m for m in measured_cells() if m.cell.budget is not None])


def test_a_surface_is_drawn_on_where_nothing_was_measured():
    at, contexts = (1, 8, 64), (100, 1000, 10000)
    points = [(b, c) for b in at for c in contexts if (b, c) not in {(64, 100), (1, 10000)}]
    plane = fit_surface(at, contexts, points, [5 + 0.1 * b + 1e-3 * c for b, c in points], [10] * 7)
    assert plane.ms[2][0] == pytest.approx(5 + 6.4 + 0.1, rel=0.01)
    assert plane.ms[0][2] == pytest.approx(5 + 0.1 + 10, rel=0.01)


def test_noise_is_levelled_rather_than_lifted():
    assert fit_curve([1, 2, 4], [3.0, 2.0, 5.0]).ms == pytest.approx((2.5, 2.5, 5.0))
    assert rising(np.array([[1.0, 3.0], [2.0, 1.0]])).tolist() == [[1.0, 2.0], [2.0, 2.0]]
