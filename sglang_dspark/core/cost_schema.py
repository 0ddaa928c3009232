"""Cost tables as files: our versioned JSON, and SGLang's two schemas (checkpoints.md 5.2).

    {"schema": "sglang-dspark/cost-table", "version": 2,
     "provenance": {...},                                        every field of `Provenance`
     "draft":    {"requests": [..], "widths": [..], "ms": [[per width] per number of requests]},
     "verify":   {"tokens": [..], "contexts": [..], "ms": [[per context] per size]},
     "rest":     {"requests": [..], "widths": [..], "ms": [[..]]},
     "no_draft": {"requests": [..], "contexts": [..], "ms": [[..]]} or null,
     "tiers":    [{"tokens": .., "slots": .., "ms": [per context]}]}

Units: milliseconds; widths are drafts per block; contexts are context tokens of the whole batch.
Ours does not load without provenance; SGLang's have none, know no context and no width, and do
not tell draft from verify.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

from sglang_dspark.core.cost_table import (
    BlockCost,
    CostTable,
    CostTableError,
    Curve,
    Provenance,
    Surface,
    TierCost,
)
from sglang_dspark.core.tiers import Tier

SCHEMA, VERSION = "sglang-dspark/cost-table", 2
NO_COST = BlockCost.of_any_width((1,), (0.0,))
KINDS = ("profiled", "start-up", "made-up")

T = TypeVar("T")


def dump_table(table: CostTable) -> str:
    """Our JSON. Raises CostTableError if the table does not say where it comes from."""
    if table.provenance is None:
        raise CostTableError("provenance", "missing; a table of ours says where it was measured")
    provenance = {f.name: getattr(table.provenance, f.name) for f in fields(Provenance)}
    record = {
        "schema": SCHEMA,
        "version": VERSION,
        "provenance": provenance | {"residuals": dict(table.provenance.residuals)},
        "draft": _blocks_json(table.draft),
        "verify": _surface_json("tokens", table.verify),
        "rest": _blocks_json(table.rest),
        "no_draft": table.no_draft and _surface_json("requests", table.no_draft),
        "tiers": [asdict(entry.tier) | {"ms": entry.ms} for entry in table.tiers],
    }
    return json.dumps(record, indent=1) + "\n"


def parse_table(text: str) -> CostTable:
    """Any of the three schemas, told apart by their keys.

    Raises:
        CostTableError: not JSON (a truncated file), an unknown schema or version, a field that is
            missing or of the wrong type, and whatever `CostTable` refuses.
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise CostTableError("file", f"not JSON, perhaps truncated: {error}") from None
    if not isinstance(raw, dict):
        raise CostTableError("file", f"a JSON object was expected, found {type(raw).__name__}")
    if "schema" in raw:
        return _ours(raw)
    if "bias_seconds" in raw:
        return _additive(raw)
    if "sample_batch_tokens" in raw:
        return _diagonal(raw)
    raise CostTableError(
        "schema", f'missing: "{SCHEMA}", or SGLang\'s "bias_seconds" or "sample_batch_tokens"'
    )


def dump_diagonal(table: CostTable, gamma: int, batch_sizes: tuple[int, ...]) -> str:
    """SGLang's diagonal schema: steps per second of full blocks, at the least context."""
    tokens, once = [n * (gamma + 1) for n in batch_sizes], once_per_step(table)
    step_ms = [
        at(once, n) + at(least_context(table.verify), b)
        for n, b in zip(batch_sizes, tokens, strict=True)
    ]
    return json.dumps(
        {
            "sample_batch_tokens": tokens,
            "sample_steps_per_sec": [1e3 / ms for ms in step_ms],
            "max_batch_tokens": tokens[-1],
        }
    )


def dump_additive(table: CostTable) -> str:
    """SGLang's additive schema: bias + alpha(requests) + theta(verified rows), least context."""
    verify, once = least_context(table.verify), once_per_step(table)
    return json.dumps(
        {
            "bias_seconds": verify.ms[0] / 1e3,
            "bs_probes": once.at,
            "alpha_seconds": [ms / 1e3 for ms in once.ms],
            "m_probes": verify.at,
            "theta_seconds": [(ms - verify.ms[0]) / 1e3 for ms in verify.ms],
        }
    )


def once_per_step(table: CostTable) -> Curve:
    """Draft and rest together, by requests, for the widest block."""
    draft, rest = table.draft.widest(), table.rest.widest()
    counts = tuple(sorted({*draft.at, *rest.at}))
    return Curve(counts, tuple(at(draft, n) + at(rest, n) for n in counts))


def at(curve: Curve, size: int) -> float:
    """ms at a size: linear, clamped at both ends (as SGLang reads its own tables)."""
    hi = bisect_right(curve.at, size)
    if hi == 0 or hi == len(curve.at):
        return curve.ms[max(hi - 1, 0)]
    share = (size - curve.at[hi - 1]) / (curve.at[hi] - curve.at[hi - 1])
    return curve.ms[hi - 1] + share * (curve.ms[hi] - curve.ms[hi - 1])


def least_context(surface: Surface) -> Curve:
    """ms by size at the first measured context."""
    return Curve(surface.at, tuple(row[0] for row in surface.ms))


def _ours(raw: dict[str, Any]) -> CostTable:
    if raw["schema"] != SCHEMA or raw.get("version") != VERSION:
        raise CostTableError(
            "schema", f"{raw['schema']!r} version {raw.get('version')!r}; this is version {VERSION}"
        )
    known = {"schema", "version", "provenance", "draft", "verify", "rest", "no_draft", "tiers"}
    if unknown := raw.keys() - known:
        raise CostTableError(min(unknown), "unknown field")
    no_draft = _field(raw, "no_draft", "", (dict, type(None)))
    return CostTable(
        draft=_blocks(raw, "draft"),
        verify=_surface(raw, "verify", "tokens"),
        rest=_blocks(raw, "rest"),
        no_draft=None if no_draft is None else _surface(raw, "no_draft", "requests"),
        tiers=tuple(_tier(entry) for entry in _field(raw, "tiers", "", list)),
        provenance=_provenance(_field(raw, "provenance", "", dict)),
    )


def _diagonal(raw: dict[str, Any]) -> CostTable:
    tokens = _numbers(raw, "sample_batch_tokens", "", int)
    speed = _numbers(raw, "sample_steps_per_sec", "", float)
    if any(not s > 0 for s in speed):
        raise CostTableError("sample_steps_per_sec", f"{list(speed)} must all be above 0")
    return _imported(tokens, tuple(1e3 / s for s in speed), NO_COST)


def _additive(raw: dict[str, Any]) -> CostTable:
    bias = _field(raw, "bias_seconds", "", (int, float))
    theta = _numbers(raw, "theta_seconds", "", float)
    requests, alpha = (
        _numbers(raw, "bs_probes", "", int),
        _numbers(raw, "alpha_seconds", "", float),
    )
    # Only the sum is a time: alpha alone may be negative, and is moved into verify then.
    least = min([*alpha, 0.0])
    verify = tuple((bias + t + least) * 1e3 for t in theta)
    if len(alpha) != len(requests):
        raise CostTableError("alpha_seconds", f"{len(alpha)} times for {len(requests)} sizes")
    per_request = BlockCost.of_any_width(requests, tuple((a - least) * 1e3 for a in alpha))
    return _imported(_numbers(raw, "m_probes", "", int), verify, per_request)


def _imported(tokens: tuple[int, ...], ms: tuple[float, ...], rest: BlockCost) -> CostTable:
    if len(ms) != len(tokens):
        raise CostTableError("verify", f"{len(ms)} times for {len(tokens)} sizes")
    verify = Surface(tokens, (0,), tuple((value,) for value in ms))
    return CostTable(draft=NO_COST, verify=verify, rest=rest, no_draft=None)


def _provenance(raw: dict[str, Any]) -> Provenance:
    expected = {f.name: f.type for f in fields(Provenance)}
    if unknown := raw.keys() - expected.keys():
        raise CostTableError(f"provenance.{min(unknown)}", "unknown field")
    values: dict[str, Any] = {}
    for name in expected:
        kind = dict if name == "residuals" else int if expected[name] == "int" else str
        values[name] = _field(raw, name, "provenance.", kind)
    residuals = values["residuals"]
    for part, value in residuals.items():
        _typed(value, f"provenance.residuals.{part}", (int, float))
    if values["kind"] not in KINDS:
        raise CostTableError("provenance.kind", f"{values['kind']!r} is none of {list(KINDS)}")
    values["residuals"] = tuple((part, float(value)) for part, value in residuals.items())
    return Provenance(**values)


def _tier(raw: Any) -> TierCost:
    entry = _typed(raw, "tiers", dict)
    try:
        tier = Tier(_field(entry, "tokens", "tiers.", int), _field(entry, "slots", "tiers.", int))
    except ValueError as error:
        if isinstance(error, CostTableError):
            raise
        raise CostTableError("tiers", str(error)) from None
    return TierCost(tier, _numbers(entry, "ms", "tiers.", float))


def _blocks(raw: dict[str, Any], name: str) -> BlockCost:
    return BlockCost(*_grid(raw, name, "requests", "widths"))


def _surface(raw: dict[str, Any], name: str, axis: str) -> Surface:
    return Surface(*_grid(raw, name, axis, "contexts"))


def _grid(
    raw: dict[str, Any], name: str, axis: str, other: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[float, ...], ...]]:
    part = _field(raw, name, "", dict)
    rows = _field(part, "ms", f"{name}.", list)
    return (
        _numbers(part, axis, f"{name}.", int),
        _numbers(part, other, f"{name}.", int),
        tuple(_numbers({"ms": row}, "ms", f"{name}.", float) for row in rows),
    )


def _blocks_json(blocks: BlockCost) -> dict[str, Any]:
    return {"requests": blocks.at, "widths": blocks.widths, "ms": blocks.ms}


def _surface_json(axis: str, surface: Surface) -> dict[str, Any]:
    return {axis: surface.at, "contexts": surface.contexts, "ms": surface.ms}


def _numbers(raw: dict[str, Any], key: str, where: str, kind: Callable[[Any], T]) -> tuple[T, ...]:
    values = _field(raw, key, where, list)
    accepted = (int,) if kind is int else (int, float)
    return tuple(kind(_typed(v, where + key, accepted)) for v in values)


def _field(raw: dict[str, Any], key: str, where: str, kind: type | tuple[type, ...]) -> Any:
    if key not in raw:
        raise CostTableError(where + key, "missing")
    return _typed(raw[key], where + key, kind)


def _typed(value: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CostTableError(name, f"{value!r} has the wrong type")
    return value
