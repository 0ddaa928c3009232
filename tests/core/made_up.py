"""Made-up cost tables: staircases with dips, and a server that they fit."""

from __future__ import annotations

import numpy as np

from sglang_dspark.core.cost_table import BlockCost, CostTable, Provenance, Surface
from sglang_dspark.core.cost_verdict import Server

SERVER = Server(
    device="Made-up CPU 9000",
    isa="avx512_bf16",
    cores=2,
    threads=2,
    dtype="float32",
    target="t-1",
    draft="d-1",
    gamma=7,
    tp=1,
    engine="sglang 0.5.23",
    attention_backend="dspark_cpu",
)

PROVENANCE = Provenance(
    kind="profiled",
    samples_per_point=20,
    date="2026-01-01T00:00:00Z",
    command="made up",
    residuals=(("verify", 0.02),),
    **{name: getattr(SERVER, name) for name in Server.__dataclass_fields__},
)


def linear_table(provenance=PROVENANCE) -> CostTable:
    """draft 2 + R/8, verify 4 + B/4 + C/1000, rest 1/2, plain 4.5 + R/4 + C/1000 ms."""
    contexts, rows, requests = (0, 1000, 4000), (1, 8, 64), (1, 8, 32)
    return CostTable(
        draft=BlockCost.of_any_width(requests, tuple(2 + n / 8 for n in requests)),
        verify=Surface(
            rows, contexts, tuple(tuple(4 + b / 4 + c / 1000 for c in contexts) for b in rows)
        ),
        rest=BlockCost.of_any_width((1, 32), (0.5, 0.5)),
        no_draft=Surface(
            requests,
            contexts,
            tuple(tuple(4.5 + n / 4 + c / 1000 for c in contexts) for n in requests),
        ),
        provenance=provenance,
    )


def dear_rows() -> CostTable:
    """Every row costs as much as everything else together: hardly a draft is worth its row."""
    return CostTable(
        draft=BlockCost.of_any_width((1, 32), (0.5, 0.5)),
        verify=Surface((1, 64), (0,), ((1.0,), (64.0,))),
        rest=BlockCost.of_any_width((1, 32), (0.5, 0.5)),
        no_draft=None,
    )


def random_table(rng: np.random.Generator, max_rows: int) -> CostTable:
    """A staircase of random width and height, every fourth step a dip; plain decode priced."""
    rows = np.arange(1, max_rows + 1)
    edges = np.sort(rng.choice(rows, size=min(rng.integers(2, 12), max_rows), replace=False))
    rises = rng.exponential(1.0, size=len(edges)) * np.where(rng.random(len(edges)) < 0.25, -0.4, 1)
    level = np.searchsorted(edges, rows, side="right")
    verify_ms = np.maximum(3.0 + np.concatenate([[0.0], np.cumsum(rises)])[level], 0.3)
    verify_ms += rng.choice([0.0, 0.02]) * rows
    draft_ms = float(rng.uniform(0, 2))
    return CostTable(
        draft=BlockCost.of_any_width((1, 64), (draft_ms, draft_ms)),
        verify=Surface(tuple(rows.tolist()), (0,), tuple((float(ms),) for ms in verify_ms)),
        rest=BlockCost.of_any_width((1, 64), (0.5, 0.5)),
        no_draft=Surface((1, 8), (0,), ((3.0,), (5.0,))),
    )
