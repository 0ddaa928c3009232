"""What may be changed while serving: one frozen record, checked before anything takes effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sglang_dspark.core.calibration import Calibration, identity
from sglang_dspark.core.plan import Pin
from sglang_dspark.engine.modes import MODES
from sglang_dspark.engine.shelf import PricedTable, Shelf, ShelfError
from sglang_dspark.settings import NoDraft

KEYS = (
    "dspark_verify_mode",
    "dspark_gamma_limit",
    "dspark_budget",
    "dspark_budget_fraction",
    "dspark_no_draft",
    "dspark_cost_table",
    "dspark_sts",
    "dspark_trace",
)
NO_DRAFT_MODES = ("off", "on", "auto", "alternate")


UNCALIBRATED = identity(1)  # for what never reads a temperature


class SteeringError(ValueError):
    """A value that cannot take effect; nothing was changed. The text goes to the client."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What this server can do at all, fixed at start."""

    gamma: int  # the most that may be drafted
    has_confidence: bool
    modes: frozenset[str]
    shelf: Shelf  # other tables and calibrations, by name
    table: PricedTable | None = None  # of the start
    calibration: Calibration = UNCALIBRATED  # of the start
    traces: bool = False  # a directory for traces was named at start
    lagged: bool = True  # the planner searches; Algorithm 1 never leaves drafting


@dataclass(frozen=True, slots=True)
class Steering:
    """The present choice."""

    mode: str
    gamma_limit: int
    no_draft: NoDraft
    pin: Pin | None = None  # a budget set by hand
    table: PricedTable | None = None  # None: nothing is priced, every draft is verified
    calibration: Calibration = UNCALIBRATED
    calibration_name: str = "start"
    trace: str | None = None  # name of the trace being written

    @property
    def table_name(self) -> str:
        """As `/server_info` shows it."""
        return "verify-all" if self.table is None else self.table.name

    def changed(self, request: Mapping[str, Any], prepared: Prepared) -> Steering:
        """This choice with the given keys changed.

        Raises:
            SteeringError: an unknown key, a value of the wrong kind, or one that this server
                was not prepared for.
        """
        new = self
        for key, value in request.items():
            new = _CHANGES[key](new, value, prepared) if key in _CHANGES else _unknown(key)
        new.check()
        return new

    def check(self) -> None:
        """Raises SteeringError where the parts of the choice do not go together."""
        schedules = MODES[self.mode].schedules
        if self.pin is not None and not schedules:
            raise SteeringError(
                f"a pinned budget has no effect in verify mode {self.mode}: "
                "set dspark_verify_mode to compact or cap-accept first"
            )
        priced = self.table is not None and self.table.costs.prices_no_draft
        if self.no_draft.mode == "auto" and not (schedules and priced):
            raise SteeringError(
                "dspark_no_draft=auto needs verify mode compact or cap-accept and a cost table "
                "that prices a no-draft step"
            )


def _unknown(key: str) -> Steering:
    raise SteeringError(f"{key} is not a DSPARK setting; known: {', '.join(KEYS)}")


def _set_mode(now: Steering, value: Any, prepared: Prepared) -> Steering:
    if value not in MODES:
        raise SteeringError(f"dspark_verify_mode={value!r}: expected one of {', '.join(MODES)}")
    if value not in prepared.modes:
        raise SteeringError(
            f"dspark_verify_mode={value} was not prepared at start (prepared: "
            f"{', '.join(sorted(prepared.modes))}); "
            + (
                "start the server with SGLANG_RAGGED_VERIFY_MODE=compact"
                if prepared.has_confidence
                else "the draft has no confidence head"
            )
        )
    kept = now.pin if MODES[value].schedules else None
    no_draft = now.no_draft
    if no_draft.mode == "auto" and not MODES[value].schedules:
        no_draft = NoDraft(mode="off")
    return replace(now, mode=value, pin=kept, no_draft=no_draft)


def _set_gamma(now: Steering, value: Any, prepared: Prepared) -> Steering:
    if not _is_int(value) or not 1 <= value <= prepared.gamma:
        raise SteeringError(
            f"dspark_gamma_limit={value!r}: expected an integer from 1 to {prepared.gamma}"
        )
    return replace(now, gamma_limit=int(value))


def _set_budget(now: Steering, value: Any, prepared: Prepared) -> Steering:
    if value is None or value == "":
        return replace(now, pin=None)
    if not _is_int(value) or value < 0:
        raise SteeringError(
            f"dspark_budget={value!r}: expected drafts per step, 0 or more, or null"
        )
    return replace(now, pin=Pin(drafts=int(value)))


def _set_fraction(now: Steering, value: Any, prepared: Prepared) -> Steering:
    if value is None or value == "":
        return replace(now, pin=None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SteeringError(f"dspark_budget_fraction={value!r}: expected 0 to 1, or null")
    return replace(now, pin=Pin(fraction=float(value)))


def _set_no_draft(now: Steering, value: Any, prepared: Prepared) -> Steering:
    if value not in NO_DRAFT_MODES:
        raise SteeringError(f"dspark_no_draft={value!r}: expected {', '.join(NO_DRAFT_MODES)}")
    if value == "auto" and not prepared.lagged:
        raise SteeringError("dspark_no_draft=auto: scheduler algorithm-1 always drafts; off or on")
    return replace(now, no_draft=NoDraft(mode=value, period=now.no_draft.period))


def _set_table(now: Steering, value: Any, prepared: Prepared) -> Steering:
    if value is None or value == "":
        return replace(now, table=prepared.table)
    if value == "off":
        kept = now.no_draft if now.no_draft.mode != "auto" else NoDraft(mode="off")
        return replace(now, table=None, no_draft=kept)
    try:
        return replace(now, table=prepared.shelf.table(value))
    except ShelfError as error:
        raise SteeringError(str(error)) from None


def _set_calibration(now: Steering, value: Any, prepared: Prepared) -> Steering:
    if value is None or value == "":
        return replace(now, calibration=prepared.calibration, calibration_name="start")
    if value == "off":
        return replace(now, calibration=identity(prepared.gamma), calibration_name="off")
    try:
        found = prepared.shelf.calibration(value)
    except ShelfError as error:
        raise SteeringError(str(error)) from None
    return replace(now, calibration=found, calibration_name=str(value))


def _set_trace(now: Steering, value: Any, prepared: Prepared) -> Steering:
    if value is None or value == "":
        return replace(now, trace=None)
    if not prepared.traces:
        raise SteeringError(
            "dspark_trace: no directory for traces was named at start; set [trace] directory in "
            "the file that SGLANG_DSPARK_CONFIG names"
        )
    # A name, never a path: requests must not choose where the server writes.
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value):
        raise SteeringError(
            f"dspark_trace={value!r}: expected a name of letters, digits, '-' and '_', or null"
        )
    return replace(now, trace=value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)


_CHANGES = {
    "dspark_verify_mode": _set_mode,
    "dspark_gamma_limit": _set_gamma,
    "dspark_budget": _set_budget,
    "dspark_budget_fraction": _set_fraction,
    "dspark_no_draft": _set_no_draft,
    "dspark_cost_table": _set_table,
    "dspark_sts": _set_calibration,
    "dspark_trace": _set_trace,
}
