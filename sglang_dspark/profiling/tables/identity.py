"""Which server a table is judged against: from a file, from a running server, or its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx

from sglang_dspark.core.cost_schema import parse_table
from sglang_dspark.core.cost_table import CostTable, CostTableError
from sglang_dspark.core.cost_verdict import Finding, Server, Verdict, judge
from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.tables.folders import TableFileError, read


class IdentityError(ValueError):
    """What was given does not say which server is meant; the text says what is missing."""


def server_from_file(path: Path) -> Server:
    """The server that a JSON file describes. Raises IdentityError.

    The file is a bare identity, a saved `/server_info`, the JSON of `sglang-dspark doctor` (under
    `server`), or a table of ours: then the server that it was measured on is meant.
    """
    try:
        raw = json.loads(read(path))
    except (TableFileError, json.JSONDecodeError) as error:
        raise IdentityError(f"--against {path}: not a readable JSON file ({error})") from None
    return server_of(raw, f"--against {path}")


def server_from_url(url: str, timeout_s: float = 30) -> Server:
    """The server that answers at `url`. Raises IdentityError."""
    client = Client(url, timeout_s=timeout_s)
    try:
        raw = client.server_info()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise IdentityError(f"--url {url}: no /server_info from there ({error})") from None
    finally:
        client.close()
    return server_of(raw, f"--url {url}")


def server_of(raw: Any, source: str) -> Server:
    """The identity in a decoded JSON. Raises IdentityError, naming `source`."""
    found = _record(raw)
    wanted = {f.name: f.type for f in fields(Server)}
    if missing := wanted.keys() - found.keys():
        raise IdentityError(
            f"{source}: no DSpark identity there, missing {', '.join(sorted(missing))}; expected "
            "what a running DSPARK server of this package shows in /server_info as "
            "internal_states[0].dspark_info_record.server"
        )
    for name, kind in wanted.items():
        if type(found[name]).__name__ != kind:
            raise IdentityError(f"{source}: {name} is {found[name]!r}, expected {kind}")
    return Server(**{name: found[name] for name in wanted})


def verdicts(text: str, server: Server | None) -> tuple[Verdict, Verdict | None]:
    """(of a file that the user names, of one that a server finds on disk by itself).

    text: the file's content; without a server the table is judged by itself, only as named.
    """
    try:
        table = parse_table(text)
    except CostTableError as error:
        return Verdict((Finding("refuse", error.field, error.reason),)), None
    if server is None:
        return own_verdict(table), None
    return judge(table, server, named_by_user=True), judge(table, server, named_by_user=False)


def own_verdict(table: CostTable) -> Verdict:
    """The table by itself: its shape, samples and residuals, as on the server it came from."""
    origin = table.provenance
    names = [f.name for f in fields(Server)]
    if origin is None:  # then nothing of the server is looked at
        server = Server(*("" if f.type == "str" else 0 for f in fields(Server)))  # type: ignore[arg-type]
    else:
        server = Server(**{name: getattr(origin, name) for name in names})
    return judge(table, server, named_by_user=True)


def _record(raw: Any) -> Mapping[str, Any]:
    """Step into the places where an identity is kept."""
    found = raw if isinstance(raw, Mapping) else {}
    states = found.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], Mapping):
        found = states[0].get("dspark_info_record") or {}
    for place in ("server", "provenance"):
        if isinstance(inner := found.get(place), Mapping):
            return inner
    return found
