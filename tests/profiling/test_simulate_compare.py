import json

import pytest
import typer
from typer.testing import CliRunner

from sglang_dspark.cli.simulate import simulate as command
from sglang_dspark.core.cost_schema import dump_table
from sglang_dspark.profiling.results import ArmRecord, Header, RequestRecord, Results, Turn
from sglang_dspark.profiling.simulate.compare import CompareError, compare, traces_for
from tests.profiling.test_simulate import row_table, trace_of

HEADER = Header(
    plan={"workloads": [{"name": "both", "domains": ["code", "text"]}]},
    servers=[],
    arms=[ArmRecord(name=name, server="dspark") for name in ("compact", "static-3")],
    target="t",
    draft="d",
    machine={},
    versions={},
    command="",
    date="",
)


def turn(arm, number, tokens_per_s, concurrency=1, workload="code"):
    requests = [RequestRecord(tokens=100, seconds=1.0)] * 2
    return Turn(
        round=number, workload=workload, concurrency=concurrency, arm=arm, order=0,
        seconds=200 / tokens_per_s, sampling={}, requests=requests,
    )  # fmt: skip


def results(**speeds):
    """Rounds of (compact, static-3) tokens/s, by c<concurrency>."""
    turns = [
        turn(arm, number, speed, int(key.removeprefix("c")))
        for key, rounds in speeds.items()
        for number, pair in enumerate(rounds)
        for arm, speed in zip(("compact", "static-3"), pair, strict=True)
    ]
    return Results(HEADER, turns)


FASTER = [(30, 20), (31, 20), (30, 21)]
SLOWER = [(20, 30), (20, 31), (21, 30)]
UNCLEAR = [(20, 22), (22, 20), (20, 21)]


@pytest.fixture
def hopeless(tmp_path):
    """Drafts that are never accepted, and the head knows it: compact must win."""
    return {"code": trace_of(tmp_path, [[0] * 20] * 20, survival=[[0.05, 0.01, 0.001]])}


def test_signs_are_counted_where_the_measurement_is_clear(hopeless):
    measured = results(c1=FASTER, c2=SLOWER, c4=UNCLEAR)
    found = compare(measured, hopeless, row_table(row_ms=0.5), "static-3")
    assert [p.is_significant for p in found.points] == [True, True, False]
    assert [p.agrees for p in found.significant] == [True, False]
    assert found.share == 0.5
    assert all(p.predicted > 1.2 for p in found.points)
    assert found.points[0].measured == pytest.approx((30 / 20 * 31 / 20 * 30 / 21) ** (1 / 3))


def test_equal_policies_are_predicted_equal(tmp_path):
    certain = {"code": trace_of(tmp_path, [[3] * 20] * 20)}
    found = compare(results(c1=FASTER), certain, row_table(), "static-3")
    assert found.points[0].predicted == pytest.approx(1)


def test_a_single_round_or_a_missing_arm_is_no_point(hopeless):
    with pytest.raises(CompareError, match="compact and static-3"):
        compare(results(c1=FASTER[:1]), hopeless, row_table(), "static-3")
    with pytest.raises(CompareError, match="arms with turns: compact, static-3"):
        compare(results(c1=FASTER), hopeless, row_table(), "static-2")


def test_a_workload_is_replayed_from_its_own_trace():
    traces = dict.fromkeys(("code", "text", "mathematics"))
    assert traces_for("text", HEADER.plan, traces) == ["text"]
    assert traces_for("both", HEADER.plan, traces) == ["code", "text"]
    assert traces_for("other", HEADER.plan, traces) == list(traces)


def test_the_command_compares(tmp_path, hopeless):
    measured = results(c1=FASTER)
    lines = [HEADER.model_dump_json(), *(t.model_dump_json() for t in measured.turns)]
    (tmp_path / "sweep.jsonl").write_text("".join(line + "\n" for line in lines))
    (tmp_path / "table.json").write_text(dump_table(row_table(row_ms=0.5)))
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    arguments = (
        f"code={tmp_path / 't.jsonl'}", "--table", tmp_path / "table.json",
        "--compare", tmp_path / "sweep.jsonl", "--json",
    )  # fmt: skip
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["significant_points"], record["share_agreeing"]) == (1, 1.0)
    assert "1 of 1 significant points agree" in " ".join(done.stderr.split())
