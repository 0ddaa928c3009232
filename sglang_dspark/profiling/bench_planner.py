"""`make bench-planner`: what a plan costs on the host, beside SGLang's own planner.

Ours is timed from confidences in host memory to (budget, predictions): survivals, relay,
feedback, both arms. SGLang's is its budget alone, without its relay, in a process of its own.
The last line is JSON: {"requests": 256, "ours_us": .., "intree_us": .., "ratio": ..}.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

from sglang_dspark.core.arms import ArmRules
from sglang_dspark.core.cost_table import BlockCost, CostTable, Surface
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.feedback import AcceptanceFeedback
from sglang_dspark.core.plan import Batch
from sglang_dspark.core.planner import Outlook, Searching
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.survival import survivals
from sglang_dspark.core.widths import WidthRules

LAG = 2
OTHER_SIZES = (1, 64, 1024)  # requests, printed for orientation
STOCK = "sglang_dspark.seam.stock_planner"
STOCK_REPEATS = 500  # beside busy cores its two threads may take 50 ms a plan


def made_up_costs(num_requests: int, gamma: int) -> StepCosts:
    """Eight measured sizes, three contexts, plain decode priced."""
    contexts = (0, 100_000, 1_000_000)
    rows = tuple(num_requests * k for k in range(1, gamma + 2))
    verify = tuple(tuple(5 + b * 0.02 + c * 1e-5 for c in contexts) for b in rows)
    table = CostTable(
        draft=BlockCost.of_any_width((1, 2 * num_requests), (2.0, 4.0)),
        verify=Surface(rows, contexts, verify),
        rest=BlockCost.of_any_width((1, 2 * num_requests), (1.0, 2.0)),
        no_draft=Surface((num_requests,), contexts, (tuple(ms + 1 for ms in verify[0]),)),
    )
    return StepCosts(table, max_requests=num_requests, gamma=gamma)


def ours(num_requests: int, gamma: int, repeats: int) -> float:
    """Median microseconds of one plan."""
    rng = np.random.default_rng(0)
    costs = made_up_costs(num_requests, gamma)
    relay = ConfidenceRelay(2 * num_requests, gamma, LAG)
    planner = Searching(
        Outlook(relay, costs, AcceptanceFeedback(gamma)),
        costs,
        arms=ArmRules(first_wait=100),
        widths=WidthRules(),
    )
    confidences = rng.beta(3.0, 1.2, (16, num_requests, gamma)).astype(np.float32)
    slots = rng.permutation(2 * num_requests)[:num_requests]
    generations = np.ones_like(slots)
    spent = []
    for step in range(repeats):
        confidence = confidences[step % 16]
        start = time.perf_counter()
        relay.publish(step, slots, generations, survivals(confidence))
        planner.plan(Batch(step + LAG, slots, generations, 200_000 + step, gamma))
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[repeats // 10 :]) * 1e6


def stock(num_requests: int, gamma: int, repeats: int) -> float:
    """The same of SGLang's planner."""
    command = [sys.executable, "-m", STOCK, "--requests", str(num_requests)]
    command += ["--gamma", str(gamma), "--repeats", str(min(repeats, STOCK_REPEATS))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["us"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--gamma", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=2000)
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, gamma {args.gamma}")
    for n in OTHER_SIZES:
        print(f"{n:5d} requests: {ours(n, args.gamma, args.repeats):6.1f} us")
    # On both sides of the other process, the slower one counts.
    before = ours(args.requests, args.gamma, args.repeats)
    theirs = stock(args.requests, args.gamma, args.repeats)
    mine = max(before, ours(args.requests, args.gamma, args.repeats))
    result = {"requests": args.requests, "ours_us": round(mine, 1), "intree_us": round(theirs, 1)}
    print(json.dumps(result | {"ratio": round(theirs / mine, 2)}))


if __name__ == "__main__":
    main()
