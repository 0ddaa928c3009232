import json
import math
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sglang_dspark.cli.simulate import simulate as command
from sglang_dspark.core.cost_schema import dump_table
from sglang_dspark.core.cost_table import BlockCost, CostTable, Surface
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.profiling.simulate.histories import UNKNOWN, History, workload_of
from sglang_dspark.profiling.simulate.policies import PolicyError, parse_policy
from sglang_dspark.profiling.simulate.replay import run_policy
from sglang_dspark.profiling.simulate.table import priced_over_taken, table_notes
from sglang_dspark.profiling.traces import TraceError, read_trace
from tests.core.made_up import PROVENANCE, random_table
from tests.profiling.made_traces import header, step, write

GAMMA = 3


def row_table(row_ms=0.01, context_ms=0.0, plain_ms=2.5) -> CostTable:
    """draft 1, verify 2 + row_ms per row + context_ms per context token, rest 1/2, plain as given;
    ms."""

    def verify(rows, context):
        return 2 + row_ms * rows + context_ms * context

    contexts, rows = (0, 1000), (1, 1000)
    return CostTable(
        draft=BlockCost.of_any_width((1, 64), (1.0, 1.0)),
        verify=Surface(rows, contexts, tuple(tuple(verify(b, c) for c in contexts) for b in rows)),
        rest=BlockCost.of_any_width((1, 64), (0.5, 0.5)),
        no_draft=Surface((1, 64), (0,), ((plain_ms,), (plain_ms,))),
        provenance=PROVENANCE,
    )


def trace_of(tmp_path, requests, **changed):
    """One request after the other, each a list of kept drafts per block; 10 tokens of context."""
    lines, number = [header(GAMMA)], 0
    for generation, blocks in enumerate(requests):
        context = 10
        for kept in blocks:
            fields = {"generations": [generation], "context_tokens": context} | changed
            lines.append(step(number, [2], [kept], GAMMA, **fields))
            number, context = number + 1, context + kept + 1
    return read_trace(write(tmp_path / "t.jsonl", lines))


def play(workload, table, name, concurrency=1, host=None, count=None, drain=True):
    costs = StepCosts(table, max_requests=concurrency, gamma=workload.gamma)
    policy = parse_policy(name, workload.gamma)
    histories = workload.choose(concurrency, count)
    return run_policy(workload, costs, policy, concurrency, histories, host, drain=drain)


def random_workload(tmp_path, seed, size=20):
    """Confidences that mean something, of `size` requests that ran two at a time."""
    rng = np.random.default_rng(seed)
    lines, number = [header(GAMMA)], 0
    for generation in range(size // 2):
        for _ in range(int(rng.integers(3, 9))):
            confidence = rng.beta(2, 1, (2, GAMMA))
            kept = np.cumprod(rng.random((2, GAMMA)) < confidence, axis=1).sum(1).tolist()
            lines.append(
                step(
                    number, [1, 2], kept, GAMMA, generations=[generation] * 2,
                    survival=np.cumprod(confidence, axis=1).tolist(),
                )
            )  # fmt: skip
            number += 1
    return workload_of([read_trace(write(tmp_path / "r.jsonl", lines))])


def test_static_is_arithmetic_over_the_trace(tmp_path):
    requests = [[3, 0, 2, 1], [0, 0, 3], [1, 2, 2, 2, 0]]
    workload = workload_of([trace_of(tmp_path, requests)])
    played = play(workload, row_table(context_ms=0.01), "static-3", count=3)
    tokens, ms = 0, 0.0
    for blocks in requests:
        context = 10
        for kept in blocks:
            ms += 1 + 2 + 4 * 0.01 + 0.01 * context + 0.5
            context += kept + 1
            tokens += kept + 1
    assert played.tokens == tokens
    assert played.ms == pytest.approx(ms)
    assert played.tokens_per_s == pytest.approx(1000 * tokens / ms)
    assert (played.steps, played.pairs, played.verified, played.accepted) == (12, 12, 36, 16)
    assert played.accept_length == pytest.approx(1 + 16 / 12)


def test_certain_drafts_and_cheap_rows_by_hand(tmp_path):
    workload = workload_of([trace_of(tmp_path, [[3] * 6] * 20)])
    played = play(workload, row_table(), "compact")
    assert played.tokens_per_s == pytest.approx(1000 * 4 / (1 + 2 + 0.04 + 0.5))
    assert played.draft_len == 3
    assert played.no_draft_share == 0
    assert played.regret == pytest.approx(0)


def test_hopeless_drafts_are_given_up(tmp_path):
    workload = workload_of([trace_of(tmp_path, [[0] * 40] * 20, survival=[[0.05, 0.01, 0.001]])])
    played = play(workload, row_table(row_ms=0.5), "compact")
    assert played.no_draft_share > 0.9
    plain = play(workload, row_table(row_ms=0.5), "no-draft")
    assert plain.tokens_per_s == pytest.approx(1000 / 2.5)
    assert math.isnan(plain.draft_len)


def test_a_policy_that_commits_less_goes_round_its_blocks_again(tmp_path):
    workload = workload_of([trace_of(tmp_path, [[3] * 6] * 20)])
    played = play(workload, row_table(), "static-1")
    assert played.tokens == 20 * 24
    assert played.steps == 20 * 12
    assert played.ms == pytest.approx(240 * (1 + 2 + 0.02 + 0.5))


def test_the_engines_own_time_is_added_to_every_step(tmp_path):
    workload = workload_of([trace_of(tmp_path, [[3] * 6] * 20, gap_ms=1.5)])
    without = play(workload, row_table(), "static-3")
    assert play(workload, row_table(), "static-3", host=workload.host).ms == pytest.approx(
        without.ms + 1.5 * without.steps
    )
    assert play(workload, row_table(), "static-3", host=HostTime()).ms == without.ms


@pytest.mark.parametrize(
    ("name", "draft_len"), [("pinned-2", 2.0), ("pinned-0.5", 1.0), ("pinned-1.0", 3.0)]
)
def test_a_pin_is_honoured(tmp_path, name, draft_len):
    workload = workload_of([trace_of(tmp_path, [[3] * 6] * 20)])
    assert play(workload, row_table(), name).draft_len == draft_len


def test_algorithm_1_stops_where_the_next_draft_does_not_pay(tmp_path):
    workload = workload_of([trace_of(tmp_path, [[1] * 6] * 20, survival=[[0.9, 0.02, 0.01]])])
    assert play(workload, row_table(row_ms=0.1), "algorithm-1").draft_len == 1


@pytest.mark.parametrize("seed", range(5))
def test_regret_is_never_negative_and_the_oracle_has_none(tmp_path, seed):
    workload = random_workload(tmp_path, seed)
    table = random_table(np.random.default_rng(seed), 16)
    for name in ("compact", "static-1", "static-3", "no-draft", "pinned-2", "algorithm-1"):
        assert -1e-12 < play(workload, table, name, 4).regret < 1
    oracle = play(workload, table, "oracle", 4)
    assert oracle.regret == pytest.approx(0, abs=1e-12)
    rates = [play(workload, table, f"static-{g}", 4).tokens_per_s for g in (1, 2, 3)]
    assert oracle.tokens_per_s > max(rates)


def test_overlap_takes_one_step_too_many(tmp_path):
    """Of a request that ends while others go on; not when all end together."""
    lines = [header(GAMMA)]
    for number in range(4):
        slots = [1, 2] if number < 3 else [2]
        lines.append(step(number, slots, [1] * len(slots), GAMMA))
    trace = read_trace(write(tmp_path / "t.jsonl", lines))
    workload = workload_of([trace])
    assert [h.tokens for h in workload.histories] == [4, 8]
    played = play(workload, row_table(), "static-3", 2, count=2)
    assert (played.steps, played.pairs, played.tokens) == (4, 7, 12)  # just as in the trace
    together = play(workload_of([trace_of(tmp_path, [[1] * 3] * 2)]), row_table(), "static-3", 2)
    assert together.pairs == together.tokens / 2
    without = workload_of(
        [read_trace(write(tmp_path / "l.jsonl", [header(GAMMA, lag=1), *lines[1:]]))]
    )
    assert [h.tokens for h in without.histories] == [6, 8]


def test_a_last_single_token_is_foreseen(tmp_path):
    def request(tokens):
        return History(None, np.zeros(4, dtype=np.int64), start_context=10, tokens=tokens)

    workload = workload_of([trace_of(tmp_path, [[0]])])
    workload = replace(workload, histories=(request(2), request(4)))
    played = play(workload, row_table(), "static-3", 2, count=2)
    assert (played.tokens, played.pairs) == (6, 6)


def test_the_end_of_a_load_counts_only_where_it_is_asked_for(tmp_path):
    workload = workload_of([trace_of(tmp_path, [[1] * 3, [1] * 9])])
    whole, full = (
        play(workload, row_table(), "static-3", 2, count=2, drain=d) for d in (True, False)
    )
    assert (whole.tokens, whole.steps) == (24, 9)
    assert (full.tokens, full.steps) == (12 + 1 * 2, 4)  # and the late step of the short one
    alone = play(workload, row_table(), "static-3", 4, count=2, drain=False)
    assert alone.tokens == 24  # never full


def test_contexts_are_told_apart_by_who_joins(tmp_path):
    lines = [
        header(GAMMA),
        step(0, [1], [1], GAMMA, context_tokens=10),
        step(1, [1, 2], [0, 3], GAMMA, context_tokens=12 + 30),
        step(2, [1, 2, 3, 4], [0, 0, 0, 0], GAMMA, context_tokens=13 + 34 + 8),
    ]
    workload = workload_of([read_trace(write(tmp_path / "t.jsonl", lines))])
    assert [h.start_context for h in workload.histories] == [10, 30, 4, 4]


def test_more_requests_are_whole_passes_over_the_recorded_ones(tmp_path):
    workload = workload_of([trace_of(tmp_path, [[3], [2], [1]])])
    chosen = workload.choose(2)
    assert len(chosen) == 16
    counts = [sum(c is h for c in chosen) for h in workload.histories]
    assert sorted(counts) == [5, 5, 6]
    assert workload.choose(1, 3) == list(workload.histories)
    assert len(workload.choose(1, 2)) == 2


def test_a_trace_without_ceilings_is_refused_where_they_are_needed(tmp_path):
    compact = trace_of(tmp_path, [[1] * 4], ceiling=None, draft_lens=[1])
    workload = workload_of([compact])
    assert (workload.histories[0].num_survived == UNKNOWN).all()
    for name in ("compact", "static-1", "oracle", "pinned-1"):
        with pytest.raises(PolicyError, match=r"100% of the blocks .* record in cap-accept"):
            play(workload, row_table(), name)
    plain = play(workload, row_table(), "no-draft")
    assert plain.tokens == 8 * 8
    assert plain.as_record()["regret"] is None


def test_a_static_trace_serves_what_needs_no_confidences(tmp_path):
    trace = trace_of(tmp_path, [[1, 3]], ceiling=None, survival=None, confidence_logits=None)
    workload = workload_of([trace])
    assert play(workload, row_table(), "static-2").steps > 0
    with pytest.raises(PolicyError, match="holds no confidences"):
        play(workload, row_table(), "compact")


def test_a_table_that_does_not_price_plain_decode(tmp_path):
    table = row_table()
    bare = CostTable(table.draft, table.verify, table.rest, no_draft=None)
    workload = workload_of([trace_of(tmp_path, [[3, 0, 1]])])
    with pytest.raises(PolicyError, match="does not price plain decode"):
        play(workload, bare, "no-draft")
    assert play(workload, bare, "compact").no_draft_share == 0
    assert play(workload, bare, "oracle").regret == pytest.approx(0)


@pytest.mark.parametrize("name", ["static-4", "static-0", "static", "pinned-2.5", "pinned", "fast"])
def test_unknown_policies_are_refused(name):
    with pytest.raises(PolicyError, match=name):
        parse_policy(name, GAMMA)


def test_nothing_drafted_is_nothing_to_replay(tmp_path):
    plain = {"drafts": False, "width": 0, "draft_lens": [0], "ceiling": None, "survival": None}
    trace = trace_of(tmp_path, [[0, 0]], confidence_logits=None, **plain)
    with pytest.raises(TraceError, match="no step drafted"):
        workload_of([trace])


def test_a_table_is_held_against_the_recorded_steps(tmp_path):
    trace = trace_of(tmp_path, [[3] * 5], worker_ms=7.08)
    assert priced_over_taken(row_table(), [trace]) == pytest.approx(3.54 / 7.08)
    notes = table_notes(row_table(), [trace])
    assert "another server" in notes[0]
    assert "0.50 times" in notes[1]


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def files(tmp_path):
    trace_of(tmp_path, [[3, 1, 0, 2]] * 10)
    (tmp_path / "table.json").write_text(dump_table(row_table()))
    return tmp_path / "t.jsonl", "--table", tmp_path / "table.json"


def test_the_command_prints_a_table_or_json(tmp_path):
    done = run(*files(tmp_path), "--concurrency", 1, "--concurrency", 4, "--json")
    assert done.exit_code == 0, done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    names = ["compact", "static-1", "static-3", "no-draft", "oracle"]
    assert [o["policy"] for o in outcomes] == names * 2
    assert [o["concurrency"] for o in outcomes] == [1] * 5 + [4] * 5
    assert all(o["regret"] >= -1e-12 and o["tokens_per_s"] > 0 for o in outcomes)
    assert "accept length" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "fast"), "no policy 'fast'"),
        (("--against", "static-1"), "--against is for --compare"),
        (("--compare", "x", "--policy", "compact"), "--compare takes policies"),
        (("--compare", "none.jsonl"), "cannot be read"),
    ],
)
def test_wrong_use_exits_2_and_says_what_to_do(tmp_path, arguments, words):
    done = run(*files(tmp_path), *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())
