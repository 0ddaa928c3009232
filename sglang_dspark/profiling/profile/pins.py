"""Telling a running server which steps to take, and reading from its trace which it took."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from sglang_dspark.profiling.client import Client, RequestError
from sglang_dspark.profiling.profile.cells import Cell
from sglang_dspark.profiling.profile.lines import StepLine, TraceError, read_trace


class Pins:
    """Run-time control of one server, whose traces lie in a folder of this machine.

    Raises, in every method:
        RequestError: the server refused, with its reason.
        TraceError: its trace is not there, or not readable.
    """

    def __init__(self, client: Client, traces: Path) -> None:
        self._client, self._traces = client, traces
        self._gamma: int | None = None  # drafts of a whole block
        self._name = f"profile-{uuid.uuid4().hex[:8]}"  # of this run's traces
        self._count = 0

    def prepare(self, gamma: int) -> None:
        """What holds for all cells; also finds out whether the traces can be read here."""
        self._gamma = gamma
        self._set(dspark_verify_mode="compact", dspark_gamma_limit=gamma)
        self._close(self._open())

    def hold(self, cell: Cell, seconds: float) -> list[StepLine]:
        """Pin a cell's step for a while; every step that was taken meanwhile."""
        drafts: dict[str, Any] = {"dspark_no_draft": "on"}
        if cell.budget is not None:
            drafts = {"dspark_no_draft": "off", "dspark_budget": cell.budget}
            drafts["dspark_gamma_limit"] = cell.width or self._gamma
        name = self._open(**drafts)
        try:
            time.sleep(seconds)
        finally:
            text = self._close(name)
        return read_trace(text)

    def _open(self, **pin: Any) -> str:
        self._count += 1
        name = f"{self._name}-{self._count}"
        self._set(**pin, dspark_trace=name)
        return name

    def _close(self, name: str) -> str:
        self._set(dspark_trace=None)
        file = self._traces / f"{name}.jsonl"
        try:
            text = file.read_text(encoding="utf-8")
        except OSError:
            raise TraceError(
                f"the server wrote the trace {file.name}, but not into {self._traces}; give the "
                "folder of its settings file's [trace] directory as --trace-directory"
            ) from None
        with suppress(OSError):
            file.unlink()
        return text

    def _set(self, **values: Any) -> None:
        try:
            self._client.post("/set_internal_state", {"server_args": values})
        except httpx.HTTPError as error:
            raise RequestError(f"the server does not answer any more ({error!r})") from None


def choice_before(record: Mapping[str, Any]) -> dict[str, Any]:
    """What to set again when a profile leaves a server that is not its own.

    record: the worker's, before anything was changed.
    """
    values: dict[str, Any] = {"dspark_verify_mode": record["mode"], "dspark_budget": None}
    if record["pinned_drafts"] is not None:
        values["dspark_budget"] = record["pinned_drafts"]
    elif record["pinned_fraction"] is not None:
        del values["dspark_budget"]
        values["dspark_budget_fraction"] = record["pinned_fraction"]
    values["dspark_gamma_limit"] = record["gamma_limit"]
    return values | {"dspark_no_draft": record["no_draft"], "dspark_trace": None}
