"""The result as numbers: `summary.json`, and what the screen shows of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sglang_dspark.core.cost_schema import dump_table
from sglang_dspark.core.cost_verdict import Server, judge
from sglang_dspark.profiling.profile.figure import draw
from sglang_dspark.profiling.profile.fit import TARGET_ERROR, Checked
from sglang_dspark.profiling.profile.run import Job, ProfileResult
from sglang_dspark.profiling.profile.samples import Measured
from sglang_dspark.profiling.profile.speed import MachineSpeed

SCHEMA, VERSION = "sglang-dspark/profile-summary", 1


def summarize(job: Job, result: ProfileResult) -> dict[str, Any]:
    """The content of `summary.json`; times in ms, errors relative."""
    fitted, header = result.fitted, result.samples.header
    table, _, _ = job.results
    widths = [m.relative_half_width for m in result.measured]
    verdict = judge(fitted.table, Server(**header.server), named_by_user=True)
    provenance = fitted.table.provenance
    assert provenance is not None
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "table": str(table),
        "verdict": {"level": verdict.level, "reasons": list(verdict.reasons)},
        "cells": len(result.plan.cells),
        "measured": len(result.measured),
        "failed": {str(cell): reason for cell, reason in result.failed.items()},
        "left_out": list(result.plan.left_out),
        "repeats": _spread([m.repeats for m in result.measured]),
        "steps": sum(m.samples for m in result.measured),
        "outliers": sum(m.rejected for m in result.measured),
        "seconds": round(result.samples.seconds, 1),
        "tolerance": job.tolerance,
        "tight_cells": sum(m.is_tight(job.tolerance) for m in result.measured),
        "half_width": {"median": _round(float(np.median(widths))), "worst": _round(max(widths))},
        "machine_speed": _machine_speed(result.samples.speed),
        "held_out": _held_out(result),
        "fit_error": _round(fitted.median_error(held_out=False)),
        "residuals": dict(provenance.residuals),
        "by_requests": [_by_requests(result.measured, r) for r in fitted.table.draft.at],
        "details": [_cell_record(check) for check in fitted.checks],
        "provenance": {
            "command": job.command,
            "date": header.date,
            "server": header.server,
            "machine": header.machine,
            "versions": header.versions,
        },
    }


def write_results(job: Job, result: ProfileResult) -> dict[str, Any]:
    """Table, figure and summary into the job's folder; what the summary holds."""
    table, figure, summary = job.results
    record = summarize(job, result)
    table.write_text(dump_table(result.fitted.table), encoding="utf-8")
    draw(result, figure, job.command)
    summary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def _machine_speed(speed: MachineSpeed | None) -> dict[str, float | None] | None:
    """Of the fixed product at the side of every step, which its times are divided by."""
    return None if speed is None else {k: _round(v) for k, v in asdict(speed).items()}


def _held_out(result: ProfileResult) -> dict[str, Any]:
    fitted, context = result.fitted, result.plan.held_out_context
    outside = [c for c in fitted.held_out if not c.is_within]
    median = fitted.median_error(held_out=True)
    return {
        "context": context,
        "cells": len(fitted.held_out),
        "median_error": _round(median),
        "median_error_at_context": _round(fitted.median_error(held_out=True, context=context)),
        "target": TARGET_ERROR,
        "outside": [str(c.measured.cell) for c in outside],
        "reached": bool(fitted.held_out) and median <= TARGET_ERROR and not outside,
    }


def _by_requests(measured: Sequence[Measured], requests: int) -> dict[str, Any]:
    """Medians over the cells of whole blocks with that many requests."""
    cells = [
        m
        for m in measured
        if m.cell.requests == requests and m.cell.budget is not None and m.cell.width is None
    ]
    parts = ("draft_ms", "target_ms", "rest_ms", "step_ms", "gap_ms")
    return {"requests": requests} | {
        part: _round(float(np.median([getattr(m, part) for m in cells]))) for part in parts
    }


def _cell_record(check: Checked) -> dict[str, Any]:
    flat: Mapping[str, Any] = asdict(check.measured)
    numbers = {k: _round(v) if isinstance(v, float) else v for k, v in flat.items() if k != "cell"}
    cell = check.measured.cell
    return {
        "requests": cell.requests,
        "budget": cell.budget,
        "width": cell.width,
        "rows": cell.rows,
        "planned_context": cell.context,
        **numbers,
        "predicted_ms": _round(check.predicted_ms),
        "error": _round(check.error),
        "held_out": check.held_out,
        "within": check.is_within,
    }


def _spread(values: Sequence[int]) -> dict[str, int]:
    return {"fewest": min(values), "most": max(values)}


def _round(value: float) -> float | None:
    """JSON has no nan."""
    return None if math.isnan(value) else round(float(value), 4)
