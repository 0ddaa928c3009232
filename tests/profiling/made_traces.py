"""Traces with a known truth, as the engine writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sglang_dspark.core.survival import confidences, survivals

SERVER = {
    "device": "made up", "isa": "none", "cores": 1, "threads": 1, "dtype": "float32",
    "target": "t", "draft": "d", "gamma": 3, "tp": 1, "engine": "none",
    "attention_backend": "none",
}  # fmt: skip


def header(gamma: int, **changed: Any) -> dict[str, Any]:
    return {
        "schema": "sglang-dspark-trace-1",
        "worker": "0",
        "gamma": gamma,
        "lag": 2,
        "max_requests": 8,
        "server": SERVER | {"gamma": gamma},
    } | changed


def step(
    number: int, slots: Sequence[int], kept: Sequence[int], gamma: int, **changed: Any
) -> dict[str, Any]:
    """A cap-accept step that judged and committed the whole block of every request."""
    size = len(slots)
    return {
        "step": number,
        "time_s": float(number),
        "slots": list(slots),
        "generations": [1] * size,
        "context_tokens": 10 * size,
        "gamma": gamma,
        "drafts": True,
        "width": gamma,
        "budget": size * gamma,
        "rows": size * (gamma + 1),
        "reason": "pinned",
        "predicted_ms": None,
        "predicted_tokens": None,
        "gap_ms": None,
        "draft_ms": 1.0,
        "target_ms": 2.0,
        "worker_ms": 4.0,
        "accepted": list(kept),
        "draft_lens": [gamma] * size,
        "survival": [[1.0] * gamma] * size,
        "confidence_logits": [[5.0] * gamma] * size,
        "ceiling": list(kept),
    } | changed


def write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def true_logits(rng: np.random.Generator, rounds: int, gamma: int) -> tuple[Any, Any]:
    """Logits [rounds, gamma] of a perfect head, and how far each block survived [rounds]."""
    logits = rng.normal(0.9, 1.3, (rounds, gamma))
    accepted = rng.random((rounds, gamma)) < confidences(logits)
    return logits, np.cumprod(accepted, axis=1).sum(1)


def write_calibration_trace(
    path: Path, rounds: int, temperatures: Sequence[float], *, per_request: int = 50, seed: int = 0
) -> Path:
    """A head whose logits are too large by `temperatures`; one request at a time."""
    gamma = len(temperatures)
    logits, kept = true_logits(np.random.default_rng(seed), rounds, gamma)
    shown = logits * np.array(temperatures)
    survival = survivals(confidences(shown))
    lines = [header(gamma)]
    for i in range(rounds):
        lines.append(
            step(
                i, [3], [int(kept[i])], gamma, generations=[i // per_request],
                survival=[survival[i].tolist()], confidence_logits=[shown[i].tolist()],
            )
        )  # fmt: skip
    return write(path, lines)
