import json

import pytest

from sglang_dspark.core.host_time import HostTime
from sglang_dspark.profiling.traces import TraceError, read_named_traces, read_trace
from tests.profiling.made_traces import SERVER, header, step, write

GAMMA = 3


def test_a_cap_accept_trace_knows_every_outcome(tmp_path):
    windows = step(
        1, [4, 5], [1, 0], GAMMA, ceiling=[3, 0], draft_lens=[1, 2], accepted=[1, 0], budget=3
    )
    trace = read_trace(write(tmp_path / "code.jsonl", [header(GAMMA), windows]))
    assert trace.name == "code"
    assert trace.header.lag == 2
    assert trace.steps[0].num_survived == [3, 0]
    assert trace.steps[0].owners == [(4, 1), (5, 1)]
    assert not trace.truncated


def test_compact_hides_what_its_window_cut_off(tmp_path):
    compact = step(
        1, [1, 2, 3, 4], [1, 0, 3, 0], GAMMA,
        ceiling=None, draft_lens=[1, 2, 3, 0], accepted=[1, 0, 3, 0],
    )  # fmt: skip
    trace = read_trace(write(tmp_path / "t.jsonl", [header(GAMMA), compact]))
    # used up: unknown; rejected inside: known; the whole block: known; nothing verified: unknown
    assert trace.steps[0].num_survived == [None, 0, 3, None]


def test_no_draft_steps_have_no_block(tmp_path):
    plain = step(
        1, [1], [0], GAMMA, drafts=False, width=0, draft_lens=[0], ceiling=None, survival=None,
        confidence_logits=None,
    )  # fmt: skip
    assert read_trace(write(tmp_path / "t.jsonl", [header(GAMMA), plain])).steps[0].width == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"generations": [1]}, "line 3: generations has 1 values for 2 slots"),
        ({"survival": [[1.0] * 2] * 2}, "line 3: survival is not 2 rows of 3 values"),
        ({"accepted": [3, 3], "ceiling": [3, 2]}, "accepted 3 of draft_len 3, ceiling 2"),
        ({"draft_lens": [4, 3]}, "block 3"),
        ({"budget": "x"}, "line 3: budget: "),
    ],
)
def test_a_malformed_line_is_named(tmp_path, change, words):
    good, bad = step(1, [1, 2], [3, 3], GAMMA), step(2, [1, 2], [2, 2], GAMMA, **change)
    with pytest.raises(TraceError, match=words):
        read_trace(write(tmp_path / "t.jsonl", [header(GAMMA), good, bad]))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "empty"),
        ([header(GAMMA)], "no steps"),
        ([header(GAMMA, schema="other")], "schema sglang-dspark-trace-1"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, lines, words):
    with pytest.raises(TraceError, match=words):
        read_trace(write(tmp_path / "t.jsonl", lines))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")


def test_the_two_ways_of_ending_early(tmp_path):
    lines = [header(GAMMA), step(1, [1], [3], GAMMA)]
    full = write(tmp_path / "full.jsonl", [*lines, {"truncated": True}])
    full.write_text(full.read_text().replace(": true", ":true"))
    cut = write(tmp_path / "cut.jsonl", lines)
    cut.write_text(cut.read_text() + json.dumps(step(2, [1], [3], GAMMA))[:40])
    for file in (full, cut):
        trace = read_trace(file)
        assert trace.truncated
        assert len(trace.steps) == 1


def test_traces_have_names_and_come_from_one_draft(tmp_path):
    lines = [header(GAMMA), step(1, [1], [3], GAMMA)]
    one, two = (write(tmp_path / name, lines) for name in ("one.jsonl", "two.jsonl"))
    assert list(read_named_traces([str(one), f"text={two}"])) == ["one", "text"]
    with pytest.raises(TraceError, match="two traces are named one"):
        read_named_traces([str(one), f"one={two}"])
    write(two, [header(GAMMA, server=SERVER | {"draft": "other"}), *lines[1:]])
    with pytest.raises(TraceError, match=r"differ in draft \(d, other\)"):
        read_named_traces([str(one), str(two)])


def test_the_engines_own_time_is_learned_from_gaps(tmp_path):
    gaps = [None, 2.0, 4.0]
    steps = [step(i, [1], [3], GAMMA, gap_ms=gap) for i, gap in enumerate(gaps)]
    host = HostTime()
    read_trace(write(tmp_path / "t.jsonl", [header(GAMMA), *steps])).learn_host_time(host)
    assert host.ms(1) == pytest.approx(0.95 * 2.0 + 0.05 * 4.0)
