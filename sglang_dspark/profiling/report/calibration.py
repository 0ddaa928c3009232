"""Reading what `sglang-dspark calibrate` left in its folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from sglang_dspark.profiling.calibrate.report import Report
from sglang_dspark.profiling.report.rounds import ReportError

FILE = "report.json"


def read_calibration(folder: Path) -> Report:
    """The held-out report of a calibration.

    Raises:
        ReportError: no such folder or file, or not a calibration's report.
    """
    file = folder / FILE
    try:
        return Report.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(
            f"--calibration {folder}: {FILE} cannot be read ({error}); "
            "give the --out folder of sglang-dspark calibrate"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ReportError(f"--calibration {file}: {where}: {first['msg']}") from None
