"""What `/server_info` shows of a worker beside its counters: how it was set up and is set now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sglang_dspark import __version__
from sglang_dspark.engine.planner import StepPlanner
from sglang_dspark.engine.setup import Setup


def present_settings(setup: Setup, plans: StepPlanner, control_error: str | None) -> dict[str, Any]:
    """Plain values; control_error: why the last request to change something was refused."""
    steering = plans.steering
    return {
        "worker": f"sglang-dspark {__version__}",
        "gamma": setup.prepared.gamma,
        "mode": steering.mode,
        "gamma_limit": steering.gamma_limit,
        "no_draft": steering.no_draft.mode,
        "pinned_drafts": steering.pin.drafts if steering.pin else None,
        "pinned_fraction": steering.pin.fraction if steering.pin else None,
        "mode_reason": setup.mode_reason,
        "cost_table": steering.table_name,
        "cost_table_verdict": steering.table.verdict if steering.table else None,
        "cost_table_reasons": list(steering.table.reasons) if steering.table else [],
        "prices_no_draft": plans.prices_no_draft,
        "calibration": steering.calibration_name,
        "trace": steering.trace,
        "server": asdict(setup.server),
        "control_error": control_error,
    }
