"""Between our schema and SGLang's two; ours is never written without provenance."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from sglang_dspark.core.cost_schema import (
    KINDS,
    dump_additive,
    dump_diagonal,
    dump_table,
    parse_table,
)
from sglang_dspark.core.cost_table import CostTable, CostTableError, Provenance
from sglang_dspark.profiling.tables.folders import TableFileError, read

Schema = Literal["ours", "sglang-additive", "sglang-diagonal"]
SCHEMAS: tuple[Schema, ...] = ("ours", "sglang-additive", "sglang-diagonal")
OPTIONAL = "residuals"  # a table that was not fitted has none


class ConversionError(ValueError):
    """The table cannot be written in that schema; the text says what to give."""


def schema_of(text: str) -> Schema:
    """The schema of a text that `parse_table` accepts."""
    raw = json.loads(text)
    if "schema" in raw:
        return "ours"
    return "sglang-additive" if "bias_seconds" in raw else "sglang-diagonal"


def to_sglang(table: CostTable, schema: Schema, gamma: int | None) -> str:
    """The table in one of SGLang's schemas, at its least context.

    gamma: drafts per block, for full blocks of the diagonal schema; else the table's own.

    Raises:
        ConversionError: nobody says gamma, or fewer than two full blocks were measured.
    """
    if schema == "sglang-additive":
        return dump_additive(table) + "\n"
    gamma = table.provenance.gamma if gamma is None and table.provenance else gamma
    if gamma is None:
        raise ConversionError(
            "the diagonal schema holds steps of full blocks, and the table has no provenance that "
            "says how many drafts a block has: give --gamma"
        )
    block, largest = gamma + 1, table.verify.at[-1]
    counts = {*table.draft.at, *table.rest.at, *(rows // block for rows in table.verify.at)}
    sizes = tuple(sorted(n for n in counts if 1 <= n <= largest // block))
    if len(sizes) < 2:
        raise ConversionError(
            f"the table ends at {largest} rows: there is one size of full blocks of 1 + {gamma} "
            "rows at most, nothing to choose between; convert to sglang-additive, or give a "
            "smaller --gamma"
        )
    return dump_diagonal(table, gamma, sizes) + "\n"


def lost(table: CostTable, schema: Schema) -> list[str]:
    """What a conversion leaves out, one line each."""
    if schema == "ours":
        return []
    found = []
    if len(table.verify.contexts) > 1:
        kept, dropped = table.verify.contexts[0], table.verify.contexts[1:]
        found.append(
            f"contexts {', '.join(map(str, dropped))}: only the least one, {kept} tokens, is kept"
        )
    if table.no_draft is not None:
        found.append("no_draft: SGLang's schemas do not price a plain decode step")
    if table.tiers:
        found.append(f"{len(table.tiers)} captured sizes that were timed on their own")
    if table.provenance is not None:
        found.append("provenance: SGLang's schemas cannot say where a table was measured")
    if schema == "sglang-diagonal":
        found.append("every window but the full block: only requests x (gamma + 1) rows are kept")
    return found


def to_ours(table: CostTable, raw_provenance: Mapping[str, Any]) -> str:
    """The table with its provenance, in our schema.

    Raises:
        ConversionError: a field is missing, unknown or of the wrong type; all missing ones are
            named at once.
    """
    known = {f.name: f.type for f in fields(Provenance)}
    if unknown := sorted(raw_provenance.keys() - known.keys()):
        raise ConversionError(f"provenance: {', '.join(unknown)}: no such field")
    if missing := [n for n in known if n not in raw_provenance and n != OPTIONAL]:
        raise ConversionError(
            f"a table of ours says where it was measured; missing: {', '.join(missing)}. Give "
            "them with --provenance FILE (JSON: these fields, or a table of ours) or, one by one, "
            f"with --set FIELD=VALUE; kind is one of {', '.join(KINDS)}"
        )
    values = {
        name: _typed(name, raw_provenance[name], str(kind))
        for name, kind in known.items()
        if name != OPTIONAL
    }
    residuals = raw_provenance.get(OPTIONAL, {})
    if not isinstance(residuals, Mapping):
        raise ConversionError(f"provenance: {OPTIONAL} is {residuals!r}, expected part -> share")
    provenance = Provenance(**values, residuals=tuple(residuals.items()))
    text = dump_table(dataclasses.replace(table, provenance=provenance))
    try:
        parse_table(text)
    except CostTableError as error:
        raise ConversionError(str(error)) from None
    return text


def gather_provenance(file: Path | None, assignments: Sequence[str]) -> dict[str, Any]:
    """Provenance fields of a file, those of `FIELD=VALUE` assignments on top.

    Raises:
        ConversionError: the file cannot be read, or an assignment is not one.
    """
    found: dict[str, Any] = {}
    if file is not None:
        try:
            raw = json.loads(read(file))
        except (TableFileError, json.JSONDecodeError) as error:
            raise ConversionError(f"--provenance {file}: not a JSON file ({error})") from None
        if not isinstance(raw, dict):
            raise ConversionError(f"--provenance {file}: expected a JSON object")
        inner = raw.get("provenance", raw)
        found |= inner if isinstance(inner, dict) else {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise ConversionError(f"--set {assignment}: expected FIELD=VALUE")
        found[name] = value
    return found


def _typed(name: str, value: Any, kind: str) -> Any:
    """A value of the field's type; numbers may come as text, from the command line."""
    if kind == "int" and isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if type(value).__name__ != kind:
        expected = "a whole number" if kind == "int" else "a text"
        raise ConversionError(f"provenance: {name} is {value!r}, expected {expected}")
    return value
