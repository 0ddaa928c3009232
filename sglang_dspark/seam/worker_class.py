"""DSPARK is served by our worker, on every device."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

# Named, not imported: the worker stands above the seam.
WORKER = "sglang_dspark.engine.worker:DSparkWorker"


def create_worker(original: Callable[..., type], algorithm: Any, server_args: Any) -> type:
    """AROUND `SpeculativeAlgorithm.create_worker`: ours for DSPARK, SGLang's for the rest."""
    if not algorithm.is_dspark():
        return original(algorithm, server_args)
    return pkgutil.resolve_name(WORKER)


def asks_for_a_budget(original: Callable[[], bool]) -> bool:
    """AROUND `decide_needs_confidence_relay`: have SGLang call `get_confidence_budget_prepare`.

    SGLang would go by SGLANG_RAGGED_VERIFY_MODE; our planner runs in every mode.
    """
    from sglang.srt.runtime_context import get_spec

    return original() or (get_spec().speculative_algorithm or "").upper() == "DSPARK"
