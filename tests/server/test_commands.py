"""The measuring commands end to end, small: each on what the one before it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_dspark.core.calibration import load_calibration
from sglang_dspark.core.cost_schema import parse_table
from sglang_dspark.profiling.results import read_results
from tests.server.conftest import Serve
from tests.server.servers import Pool

# All of them name the same server, so that they stay in this order.
pytestmark = [pytest.mark.timeout(900), pytest.mark.serves("scheduled")]

PLAN = """
rounds = 2
concurrency = [1, 3]
max_new_tokens = 12
arms = ["no-speculation", "static-7", "compact", "cap-accept"]

[[workloads]]
name = "mixed"
domains = ["code", "text"]
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one command writes and the next one reads."""
    return tmp_path_factory.mktemp("commands")


def run(*arguments: object, statuses: tuple[int, ...] = (0,)) -> Any:
    """The JSON that a command prints; it must end with one of the statuses."""
    done = subprocess.run(
        [sys.executable, "-m", "sglang_dspark.cli", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode in statuses, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_profile_measures_a_running_server_and_leaves_it_as_it_was(
    serve: Serve, pool: Pool, out: Path
) -> None:
    server = serve("scheduled")
    before = server.client.worker_record()
    summary = run(
        *("profile", "--attach", server.url, "--trace-directory", pool.traces),
        *("--max-requests", 2, "--contexts", "64,256", "--minutes", 0, "--quick"),
        *("--out", out / "profile"),
    )
    table = parse_table((out / "profile" / "table.json").read_text())
    assert table.provenance is not None and table.provenance.kind == "profiled"
    assert table.no_draft is not None and len(table.verify.at) >= 2
    assert summary["machine_speed"]["usual_ms"] > 0  # the pool's settings ask for it
    assert summary and (out / "profile" / "figure.png").stat().st_size > 10_000
    after = server.client.worker_record()
    keys = ("mode", "gamma_limit", "no_draft", "pinned_drafts", "trace", "cost_table")
    assert {k: after[k] for k in keys} == {k: before[k] for k in keys}
    # Measured in seconds, perhaps beside others: its residuals may call for a warning.
    judged = run(
        *("tables", "validate", out / "profile" / "table.json", "--url", server.url),
        statuses=(0, 1),
    )
    assert all(f["field"].startswith("residuals.") for f in judged["findings"])


def test_calibrate_records_from_a_running_server_and_fits(
    serve: Serve, pool: Pool, out: Path
) -> None:
    server = serve("scheduled")
    report = run(
        *("calibrate", "--record", "--url", server.url, "--trace-directory", pool.traces),
        *("--min-rounds", 100, "--max-new-tokens", 32, "--out", out / "calibration"),
    )
    assert report
    found = load_calibration(out / "calibration" / "sts.json", 7)
    assert found.num_samples >= 100 and found.provenance
    assert (out / "calibration" / "reliability.png").stat().st_size > 10_000


def test_simulate_replays_the_recorded_traffic_under_the_profiled_table(
    pool: Pool, out: Path
) -> None:
    traces = [p for p in sorted(pool.traces.glob("*.jsonl")) if "greedy" not in p.name]
    outcomes = run(
        *("simulate", *traces, "--table", out / "profile" / "table.json"),
        *("--policy", "compact", "--policy", "static-7", "--policy", "oracle"),
        *("--concurrency", 2, "--requests", 16),
    )["outcomes"]
    speeds = {o["policy"]: o["tokens_per_s"] for o in outcomes}
    assert speeds["oracle"] >= max(speeds["compact"], speeds["static-7"]) > 0


def test_sweep_compares_the_arms_and_goes_on_where_it_stopped(out: Path) -> None:
    (out / "plan.toml").write_text(PLAN)
    results = out / "sweep.jsonl"
    points = run("sweep", out / "plan.toml", "--out", results)
    assert len(points) == 2 * 4 and not any(p["errors"] for p in points)
    found = read_results(results)
    assert found.arms == ("no-speculation", "static-7", "compact", "cap-accept")
    assert all(turn.tokens == 12 * len(turn.requests) for turn in found.turns)
    static = [t.worker for t in found.turns if t.arm == "static-7"]
    assert all(w is not None and w.verified_drafts == w.drafted for w in static)


def test_report_draws_them(pool: Pool, out: Path) -> None:
    (trace, *_) = [p for p in sorted(pool.traces.glob("*.jsonl")) if "greedy" not in p.name]
    run(
        *("report", out / "sweep.jsonl", "--calibration", out / "calibration", "--trace", trace),
        *("--profile", out / "profile", "--out", out / "report"),
    )
    page = (out / "report" / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 6
    assert len(list((out / "report").glob("*.png"))) >= 6
