"""A per-step JSONL trace, off unless asked for, with all that a replay of the planner needs.

It holds no text and no token ids: shapes, confidences, windows and outcomes only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sglang_dspark.engine.planner import FinishedStep, Spent
from sglang_dspark.engine.steering import SteeringError
from sglang_dspark.settings import TraceSettings

SCHEMA = "sglang-dspark-trace-1"


class TraceError(ValueError):
    """The trace cannot be written there."""


class Trace:
    """One open file. Writing stops at `max_bytes`, with a last line that says so."""

    def __init__(self, path: Path, max_bytes: int, header: dict[str, Any]) -> None:
        """Raises TraceError where the file exists already or cannot be made."""
        try:
            self._file: TextIO | None = path.open("x", encoding="utf-8")
        except FileExistsError:
            raise TraceError(f"trace {path.name} exists already; choose another name") from None
        except OSError as error:
            raise TraceError(f"trace {path.name} cannot be written: {error.strerror}") from None
        self.path, self._left = path, max_bytes
        self._write({"schema": SCHEMA, **header})

    def add(self, done: FinishedStep) -> None:
        """One finished decode step."""
        step = done.step
        record: dict[str, Any] = {
            "step": step.batch.step,
            "time_s": round(step.started_s, 6),
            "slots": step.batch.slots.tolist(),
            "generations": step.batch.generations.tolist(),
            "context_tokens": step.batch.context_tokens,
            "gamma": step.batch.gamma,
            "drafts": step.plan.drafts,
            "width": step.plan.width,
            "budget": step.plan.budget,
            "rows": step.plan.num_rows,
            "reason": step.plan.reason,
            "predicted_ms": _number(step.plan.predicted_ms),
            "predicted_tokens": _number(step.plan.predicted_tokens),
            "gap_ms": None if step.gap_ms is None else round(step.gap_ms, 4),
            **_rounded(step.spent),
            "accepted": done.accepted.tolist(),
            "draft_lens": done.draft_lens.tolist(),
        }
        if step.survival is not None:
            record["survival"] = np.round(step.survival.numpy().astype(float), 6).tolist()
        if step.confidence_logits is not None:
            logits = step.confidence_logits.numpy().astype(float)
            record["confidence_logits"] = np.round(logits, 5).tolist()
        if step.reference_ms is not None:
            record["reference_ms"] = round(step.reference_ms, 4)
        if done.ceiling is not None:
            record["ceiling"] = done.ceiling.tolist()
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = json.dumps(record, separators=(",", ":")) + "\n"
        if len(line) > self._left:
            self._file.write('{"truncated":true}\n')
            self.close()
            return
        self._left -= len(line)
        self._file.write(line)

    def close(self) -> None:
        """Finish the file; later steps are not recorded."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TraceFolder:
    """Where traces go, and the one that is being written."""

    def __init__(self, settings: TraceSettings, header: Mapping[str, Any]) -> None:
        self._settings, self._header = settings, dict(header)
        self._trace: Trace | None = None

    @property
    def is_open(self) -> bool:
        return self._trace is not None

    @property
    def times_reference(self) -> bool:
        """Whether a step that is written now should say how fast the machine was."""
        return self._settings.reference and self.is_open

    def switch(self, name: str | None) -> None:
        """End the present trace and begin the named one; None begins none.

        Raises:
            SteeringError: it cannot be begun; the present one goes on.
        """
        opened = None if name is None else self._open(name)
        if self._trace is not None:
            self._trace.close()
        self._trace = opened

    def add(self, done: FinishedStep) -> None:
        if self._trace is not None:
            self._trace.add(done)

    def _open(self, name: str) -> Trace:
        directory = self._settings.directory
        assert directory is not None  # else steering has refused the name
        try:
            return Trace(directory / f"{name}.jsonl", self._settings.max_mb << 20, self._header)
        except TraceError as error:
            raise SteeringError(str(error)) from None


def _rounded(spent: Spent | None) -> dict[str, float]:
    return {} if spent is None else {k: round(v, 4) for k, v in asdict(spent).items()}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)
