"""The worker's counters on SGLang's own `/metrics` page."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_context

PREFIX = "sglang:dspark_"
# Counters by the key of the worker's record that they follow.
COUNTERS = {
    "steps": "Decode steps",
    "no_draft_steps": "Decode steps taken without a draft",
    "verified_requests": "(request, step) pairs that went through verification",
    "drafted": "Drafts proposed",
    "verified_drafts": "Drafts verified",
    "accepted_drafts": "Drafts committed",
    "planned_rows": "Rows given to the target in decode steps",
}
GAUGES = {
    "accept_length": "Accept length since start (next token included)",
    "ceiling_accept_length": "Accept length had every draft been judged (cap-accept)",
    "trim_ratio": "Share of drafts that were not verified",
    "predicted_step_ms": "Mean predicted duration of a decode step",
    "actual_step_ms": "Mean actual duration of the same steps",
}


def metrics_enabled() -> bool:
    """Whether the server was started with `--enable-metrics`."""
    return bool(get_context().server_args.enable_metrics)


class Exporter:
    """Prometheus metrics that follow a record of sums; SGLang's multiprocess directory is set."""

    def __init__(self) -> None:
        # Imported now: the client reads the directory from the environment when it is imported.
        from prometheus_client import Counter, Gauge

        self._counters = {key: Counter(PREFIX + key, text) for key, text in COUNTERS.items()}
        self._gauges = {
            key: Gauge(PREFIX + key, text, multiprocess_mode="mostrecent")
            for key, text in GAUGES.items()
        }
        self._error = Gauge(
            PREFIX + "calibration_error",
            "Live expected calibration error by draft position",
            ["position"],
            multiprocess_mode="mostrecent",
        )
        self._seen = dict.fromkeys(COUNTERS, 0)

    def update(self, record: dict[str, Any]) -> None:
        """Bring the page up to the record; values that are not known yet stay out."""
        for key, counter in self._counters.items():
            # A cleared record starts again below what was counted already.
            counter.inc(max(0, record[key] - self._seen[key]))
            self._seen[key] = record[key]
        for key, gauge in self._gauges.items():
            if record[key] is not None:
                gauge.set(record[key])
        for position, error in enumerate(record["calibration_error"], 1):
            if error is not None:
                self._error.labels(position=str(position)).set(error)
