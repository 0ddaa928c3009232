"""Time of SGLang's own budget planner, for `make bench-planner`: one JSON line on stdout.

Run as `python -m sglang_dspark.seam.stock_planner --requests 256 --gamma 7`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from types import SimpleNamespace

import torch
from sglang.srt.speculative.dspark_components.dspark_planner import (
    DSparkScheduleConfig,
    HostConfidenceBudgetPlanner,
)
from sglang.srt.speculative.dspark_components.dspark_sps import SpsCostTable

LAG = 2  # of SGLang's relay under overlap; then the planner carries no history of its own
PROBES = 8  # sizes in the table


def measure(num_requests: int, gamma: int, repeats: int) -> float:
    """Median microseconds of one budget, from confidences in host memory."""
    tokens = [num_requests * (gamma + 1) * k // PROBES + 1 for k in range(1, PROBES + 1)]
    table = SpsCostTable(tokens, [100.0 / (1 + k) for k in range(PROBES)], tokens[-1])
    pool = SimpleNamespace(req_to_token=torch.zeros(2 * num_requests, 1))
    planner = HostConfidenceBudgetPlanner(
        sps_table=table,
        cfg=DSparkScheduleConfig(gamma=gamma),
        model_runner=SimpleNamespace(req_to_token_pool=pool),
        relay_lag_steps=LAG,
    )
    generator = torch.Generator().manual_seed(0)
    confidences = torch.rand(16, num_requests, gamma, generator=generator).sqrt_()
    generation = torch.ones(num_requests, dtype=torch.int64)
    slots = torch.arange(num_requests)
    spent = []
    for i in range(repeats):
        start = time.perf_counter()
        planner.compute_budget(
            confidence=confidences[i % 16],
            generation=generation,
            current_generation=generation,
            req_pool_indices_cpu=slots,
        )
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[repeats // 10 :]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--gamma", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=1000)
    args = parser.parse_args()
    spent = measure(args.requests, args.gamma, args.repeats)
    print(json.dumps({"requests": args.requests, "us": round(spent, 1)}))


if __name__ == "__main__":
    main()
