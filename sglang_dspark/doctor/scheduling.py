"""What decides the windows: the cost table and the calibration."""

from __future__ import annotations

from sglang_dspark.doctor.facts import Calibration, Draft, Served, Table
from sglang_dspark.doctor.finding import Finding, ok, problem, warning

TABLE_FLAG = "--speculative-dspark-sps-table-path"
STS_FLAG = "--speculative-dspark-confidence-sts-path"


def check_table(served: Served, table: Table | None) -> Finding:
    if table is None:
        return ok("cost table", f"none is needed in verify mode {served.mode}")
    if table.switched_off:
        return warning(
            "cost table",
            "switched off by the settings file: every draft is verified",
            "set cost_table = auto there",
        )
    if table.error is not None:
        text, _, advice = table.error.partition(". ")
        return problem("cost table", text, advice)
    if table.name is None:
        return ok("cost table", "none on this machine fits: a small one is measured at start")
    how = "named" if table.named else "found on this machine"
    if table.verdict == "warn":
        return warning(
            "cost table",
            f"{table.name}, {how}, with reserve: {'; '.join(table.reasons)}",
            "measure a better one with `sglang-dspark profile`",
        )
    return ok("cost table", f"{table.name}, {how}, fits")


def check_calibration(draft: Draft, calibration: Calibration | None) -> Finding:
    if calibration is None:
        kind = (
            "confidences are used as they are" if draft.has_confidence else "nothing to calibrate"
        )
        return ok("calibration", f"none is named: {kind}")
    if calibration.error is not None:
        return problem("calibration", calibration.error, f"give another file with {STS_FLAG}")
    source = f", fitted on {calibration.num_samples} blocks" if calibration.num_samples else ""
    return ok("calibration", f"{calibration.named}{source}")
