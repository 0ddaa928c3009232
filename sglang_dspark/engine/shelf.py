"""The cost tables and calibrations that run-time control may name: files of two folders."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sglang_dspark.core.calibration import Calibration, load_calibration
from sglang_dspark.core.cost_verdict import Server
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.engine.tables import LoadedTable, load_table

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ShelfError(ValueError):
    """There is no such file, or it does not fit this server; the text says why."""


@dataclass(frozen=True, slots=True)
class PricedTable:
    """A cost table, made ready for this server."""

    name: str
    verdict: str  # use | warn
    reasons: tuple[str, ...]
    costs: StepCosts


@dataclass(frozen=True, slots=True)
class Shelf:
    """Folders fixed at start; requests give names, never paths."""

    server: Server
    price: Callable[[LoadedTable], PricedTable]
    tables: Path | None = None
    calibrations: Path | None = None

    def table(self, name: str) -> PricedTable:
        """Raises ShelfError: an unknown name, or a table that does not fit this server."""
        path = _file("dspark_cost_table", name, self.tables, "cost_tables")
        try:
            return self.price(load_table(path, self.server, named_by_user=True))
        except ValueError as error:
            raise ShelfError(str(error)) from None

    def calibration(self, name: str) -> Calibration:
        """Raises ShelfError: an unknown name, or a file for another gamma."""
        path = _file("dspark_sts", name, self.calibrations, "calibrations")
        try:
            return load_calibration(path, self.server.gamma)
        except ValueError as error:
            raise ShelfError(str(error)) from None


def _file(key: str, name: str, folder: Path | None, setting: str) -> Path:
    if folder is None:
        raise ShelfError(
            f"{key}: no folder was named at start; set [control] {setting} in the file that "
            "SGLANG_DSPARK_CONFIG names"
        )
    known = sorted(path.stem for path in folder.glob("*.json"))
    if not isinstance(name, str) or not NAME.fullmatch(name) or name not in known:
        raise ShelfError(f"{key}={name!r}: expected one of {', '.join(known) or '(none there)'}")
    return folder / f"{name}.json"
