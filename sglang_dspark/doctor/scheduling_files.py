"""Which cost table and calibration a server would use."""

from __future__ import annotations

from pathlib import Path

from sglang_dspark.core.calibration import CalibrationError, load_calibration
from sglang_dspark.core.cost_table import CostTable
from sglang_dspark.core.cost_verdict import Server
from sglang_dspark.doctor.facts import Calibration, Table
from sglang_dspark.engine.tables import TableRefused, find_table
from sglang_dspark.settings import Settings


class _WouldMeasure(Exception):
    """No table on this machine fits."""


def look_at_table(server: Server, named: str | None, settings: Settings) -> Table:
    """The server's own search; where it would measure a table, there is no name."""
    if settings.cost_table == "off":
        return Table(named=named, switched_off=True)
    try:
        found = find_table(server, named, _measure, known=settings.cost_table == "auto")
    except TableRefused as error:
        return Table(named=named, error=str(error))
    except _WouldMeasure:
        return Table(named=named)
    return Table(named=named, name=found.name, verdict=found.verdict, reasons=found.reasons)


def look_at_calibration(named: str, gamma: int) -> Calibration:
    try:
        found = load_calibration(Path(named), gamma)
    except CalibrationError as error:
        return Calibration(named=named, error=str(error))
    return Calibration(named=named, dataset=found.dataset, num_samples=found.num_samples)


def _measure() -> CostTable:
    raise _WouldMeasure
