"""The fit and what it is worth on blocks that it has not seen: `report.json`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sglang_dspark.core.calibration import Calibration
from sglang_dspark.core.sts import BINS, GRID, calibration_error, fit_temperatures
from sglang_dspark.profiling.calibrate.blocks import Blocks, blocks_of, split_halves
from sglang_dspark.profiling.calibrate.reason import TARGET_ECE, explain
from sglang_dspark.profiling.calibrate.scores import (
    F64,
    Bools,
    auc,
    best_monotone,
    brier,
    perfect_error,
    reliability_curve,
)
from sglang_dspark.profiling.provenance import machine, versions
from sglang_dspark.profiling.traces import Trace, check_same_server

POOLED = "pooled"
DEFAULT_ROUNDS, SHIPPED_ROUNDS = 2_000, 20_000


class TooFewRounds(ValueError):
    """Not enough held-out blocks; the text says how many are needed."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Score(_Record):
    """Of one position's survivals against the accepted prefix."""

    ece: float  # 0..1
    brier: float
    auc: float | None  # None: all outcomes were the same
    reliability: list[tuple[float, float, int]]  # mean predicted, observed, blocks; by bin


class Position(_Record):
    position: int  # 1..gamma
    temperature: float
    accepted: float  # share of blocks that survived up to here
    before: Score  # as the head says, T = 1
    after: Score
    perfect_ece: float  # that a perfect predictor would show at this number of blocks: mean
    perfect_ece_95: float  # and in 95 % of cases at most
    monotone_ece: float  # after the best rising map in place of a temperature
    remark: str | None  # why one temperature does not reach the target, where it does not


class Group(_Record):
    """Held-out blocks of one kind: half of its requests."""

    name: str
    kind: Literal["pooled", "domain", "evaluated"]  # evaluated: never fitted on
    rounds: int
    requests: int
    positions: list[Position]


class Report(_Record):
    format: Literal["sglang-dspark/calibration"] = "sglang-dspark/calibration"
    version: Literal[1] = 1
    gamma: int
    bins: int = BINS
    domains: list[str]  # that the temperatures were fitted on
    temperatures: list[float]
    fit_rounds: int
    held_out_rounds: int
    min_rounds: int
    groups: list[Group]
    notes: list[str]
    server: dict[str, Any]
    provenance: dict[str, Any]


def calibrate(
    traces: Mapping[str, Trace],
    evaluated: Mapping[str, Trace],
    *,
    min_rounds: int = DEFAULT_ROUNDS,
    seed: int = 0,
    command: str = "",
) -> Report:
    """Fit on one half of the blocks of `traces`, report on the other and on half of `evaluated`.

    Raises:
        TooFewRounds, TraceError
    """
    check_same_server({**traces, **evaluated})
    blocks = blocks_of(traces)
    fit, held_out = split_halves(blocks, seed)
    if len(held_out) < min_rounds or not len(fit):
        raise TooFewRounds(
            f"{len(held_out):,} held-out rounds per position (half of {len(blocks):,}), "
            f"{min_rounds:,} are needed: record {2 * min_rounds:,} rounds or more in all, or lower "
            f"--min-rounds (a perfect predictor shows an ECE of 2.7 % at 2,000 and 0.9 % at 20,000)"
        )
    temperatures = fit_temperatures(fit.logits, fit.num_survived)
    groups = [_group(POOLED, "pooled", temperatures, fit, held_out)]
    if len(blocks.domains) > 1:
        groups += [
            _group(n, "domain", temperatures, fit.of_domain(n), held_out.of_domain(n))
            for n in blocks.domains
        ]
    for name, trace in evaluated.items():
        halves = split_halves(blocks_of({name: trace}), seed)
        groups.append(_group(name, "evaluated", temperatures, *halves))
    return Report(
        gamma=blocks.gamma,
        domains=list(blocks.domains),
        temperatures=list(temperatures),
        fit_rounds=len(fit),
        held_out_rounds=len(held_out),
        min_rounds=min_rounds,
        groups=groups,
        notes=_notes(traces, evaluated, temperatures, len(held_out)),
        server=next(iter(traces.values())).header.server,
        provenance={
            "command": command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(),
        },
    )


def as_calibration(report: Report) -> Calibration:
    """What a server loads; the errors are those of the pooled held-out half."""
    pooled = report.groups[0].positions
    return Calibration(
        temperatures=tuple(report.temperatures),
        dataset=", ".join(report.domains),
        num_samples=report.fit_rounds,
        ece_before=tuple(p.before.ece for p in pooled),
        ece_after=tuple(p.after.ece for p in pooled),
        provenance={
            **report.provenance,
            "server": report.server,
            "held_out_rounds": report.held_out_rounds,
            "bins": report.bins,
        },
    )


def _group(
    name: str,
    kind: Literal["pooled", "domain", "evaluated"],
    temperatures: tuple[float, ...],
    fit: Blocks,
    held_out: Blocks,
) -> Group:
    """fit: only the bound of the best rising map is fitted on it."""
    raw, scaled = held_out.survival(), held_out.survival(temperatures)
    fit_scaled, fit_survived = fit.survival(temperatures), fit.survived
    survived = held_out.survived
    positions = [
        _position(
            k,
            temperatures[k],
            (raw[:, k], scaled[:, k], survived[:, k]),
            (fit_scaled[:, k], fit_survived[:, k]),
        )
        for k in range(held_out.gamma)
    ]
    return Group(
        name=name,
        kind=kind,
        rounds=len(held_out),
        requests=held_out.num_requests,
        positions=positions,
    )


def _position(
    k: int, temperature: float, held_out: tuple[F64, F64, Bools], fit: tuple[F64, Bools]
) -> Position:
    """held_out: survivals before and after, outcomes; fit: survivals after, outcomes."""
    raw, scaled, survived = held_out
    perfect, perfect_95 = perfect_error(scaled)
    monotone = calibration_error(best_monotone(*fit, scaled), survived)
    after = _score(scaled, survived)
    remark = None
    if after.ece > TARGET_ECE:
        remark = explain(k + 1, scaled, survived, after.ece, monotone, perfect_95)
    return Position(
        position=k + 1,
        temperature=temperature,
        accepted=float(survived.mean()),
        before=_score(raw, survived),
        after=after,
        perfect_ece=perfect,
        perfect_ece_95=perfect_95,
        monotone_ece=monotone,
        remark=remark,
    )


def _score(survival: F64, survived: Bools) -> Score:
    ranking = auc(survival, survived)
    return Score(
        ece=calibration_error(survival, survived),
        brier=brier(survival, survived),
        auc=None if np.isnan(ranking) else ranking,
        reliability=reliability_curve(survival, survived),
    )


def _notes(
    traces: Mapping[str, Trace],
    evaluated: Mapping[str, Trace],
    temperatures: tuple[float, ...],
    held_out: int,
) -> list[str]:
    notes = [
        f"{name}: the trace was cut off; what is there was used"
        for name, trace in {**traces, **evaluated}.items()
        if trace.truncated
    ]
    at_edge = [str(k) for k, t in enumerate(temperatures, 1) if t in (min(GRID), max(GRID))]
    if at_edge:
        notes.append(
            f"position {', '.join(at_edge)}: the best temperature lies at the edge of what was "
            f"tried ({min(GRID):g} to {max(GRID):g}); the head tells little there"
        )
    if held_out < SHIPPED_ROUNDS:
        notes.append(
            f"{held_out:,} held-out rounds per position; a file to ship should rest on "
            f"{SHIPPED_ROUNDS:,}"
        )
    return notes
