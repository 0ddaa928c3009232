"""Reading what `sglang-dspark calibrate` left in its folder."""

from __future__ import annotations

from pathlib import Path

from sglang_dspark.profiling.calibrate.report import Report
from sglang_dspark.profiling.report.record import read_record

FILE = "report.json"


def read_calibration(folder: Path) -> Report:
    """The held-out report of a calibration.

    Raises:
        ReportError: no such folder or file, or not a calibration's report.
    """
    return read_record(Report, folder, FILE, "calibrate")
