"""Where the numbers come from: machine, versions, servers, sampling, errors, what was skipped."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sglang_dspark.profiling.report.document import ABSENT, Table
from sglang_dspark.profiling.results import Results

LONGEST = 300  # characters of an error's text
MOST_VALUES = 6  # of a sampling parameter that changes from turn to turn


def facts(results: Results, results_name: str, command: str) -> tuple[tuple[str, str], ...]:
    header = results.header
    rounds = Counter((t.workload, t.concurrency, t.arm) for t in results.turns).values()
    span = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
    failed = sum(r.error is not None for t in results.turns for r in t.requests)
    sent = sum(len(t.requests) for t in results.turns)
    return (
        ("Target", header.target),
        ("Draft", header.draft),
        ("Machine", _pairs(header.machine)),
        ("Versions", _pairs(header.versions)),
        ("Measured", header.date),
        ("Rounds per point", span),
        ("Requests", f"{sent:,} sent, {failed:,} failed"),
        ("Skipped arms", ", ".join(s.arm for s in results.skipped) or "none"),
        ("Results", results_name),
        ("Made by", header.command),
        ("This report", command),
    )


def tables(results: Results) -> tuple[Table, ...]:
    return (errors(results), skipped(results), sampling(results), servers(results), plan(results))


def errors(results: Results) -> Table:
    """Every failed request, counted by arm and text."""
    found = Counter(
        (turn.arm, turn.workload, " ".join(r.error.split())[:LONGEST])
        for turn in results.turns
        for r in turn.requests
        if r.error is not None
    )
    rows = tuple((arm, where, text, f"{n:,}") for (arm, where, text), n in found.most_common())
    note = "Counted in no speed." if rows else "No request failed."
    return Table(
        "Errors", ("arm", "workload", "error", "requests"), rows, note, words=3, prose=True
    )


def skipped(results: Results) -> Table:
    rows = tuple((s.arm, s.reason) for s in results.skipped)
    return Table(
        "Skipped arms",
        ("arm", "reason"),
        rows,
        "" if rows else "None: every arm of the plan was measured.",
        words=2,
        prose=True,
    )


def sampling(results: Results) -> Table:
    """Every effective value, of each workload."""
    rows = []
    for workload in results.workloads:
        turns = [t.sampling for t in results.turns if t.workload == workload]
        for key in dict.fromkeys(k for values in turns for k in values):
            values = dict.fromkeys(json.dumps(v[key]) if key in v else ABSENT for v in turns)
            rows.append((workload, key, _few(list(values))))
    return Table("Sampling", ("workload", "parameter", "value"), tuple(rows), words=3, prose=True)


def servers(results: Results) -> Table:
    header = results.header
    rows = []
    for server in header.servers:
        arms = [a for a in header.arms if a.server == server.name]
        environment = [f"{k}={v}" for k, v in server.environment.items()]
        rows.append(
            (
                server.name,
                ", ".join(a.name for a in arms),
                shlex.join([*environment, *server.flags]),
                server.worker or "SGLang's own",
                ABSENT if server.gamma is None else f"{server.gamma}",
                server.cost_table or ABSENT,
                server.calibration or ABSENT,
            )
        )
    return Table(
        "Servers",
        ("server", "arms", "environment and flags", "worker", "gamma", "cost table", "calibration"),
        tuple(rows),
        words=7,
        prose=True,
    )


def plan(results: Results) -> Table:
    rows = [(key, json.dumps(value)) for key, value in results.header.plan.items()]
    rows += [
        (f"settings of {a.name}", json.dumps(a.control)) for a in results.header.arms if a.control
    ]
    return Table(
        "Plan, every default filled in", ("key", "value"), tuple(rows), words=2, prose=True
    )


def _few(values: list[str]) -> str:
    if len(values) <= MOST_VALUES:
        return ", ".join(values)
    return f"{len(values):,} values: {', '.join(values[:3])} ... {values[-1]}"


def _pairs(record: Any) -> str:
    items: Iterable[tuple[str, Any]] = record.items()
    return ", ".join(f"{key} {value}" for key, value in items)
