"""`profile` against a server that only pretends: pins, repeats, resumption, files, statuses."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import pytest
import typer
from typer.testing import CliRunner

from sglang_dspark.cli.profile import profile
from sglang_dspark.core.cost_schema import parse_table
from sglang_dspark.profiling.profile.cells import Cell, Group, Limits, make_plan, order
from sglang_dspark.profiling.profile.drive import Driver
from sglang_dspark.profiling.profile.lines import StepLine, TraceError
from sglang_dspark.profiling.profile.record import CellSteps, GroupSteps, Samples, read_samples
from sglang_dspark.profiling.profile.run import Job, collect
from sglang_dspark.profiling.profile.servers import Attached, AttachError

pytestmark = pytest.mark.timeout(120)

STEP_S = 0.003
IDENTITY = {
    **{"device": "made up", "isa": "avx2", "cores": 2, "threads": 2, "dtype": "float32"},
    **{"target": "aa", "draft": "bb", "gamma": 3, "tp": 1, "engine": "sglang 0"},
    "attention_backend": "none",
}
BEFORE = {
    **{"mode": "cap-accept", "gamma_limit": 2, "no_draft": "auto", "pinned_drafts": None},
    **{"pinned_fraction": 0.5, "trace": None},
}


class Pretender:
    """Our worker as seen from outside: requests, pins and a trace; a step every 3 ms."""

    def __init__(self, traces, *, most=4, obeys=True, synchronous=True, foreign=False):
        self.traces, self.most, self.obeys, self.synchronous = traces, most, obeys, synchronous
        self.foreign = foreign
        self.pins: dict = {}
        self.settings: list[dict] = []  # every change, in order
        self.lock = threading.Lock()
        self.requests: dict[str, int] = {}  # context tokens by rid
        self.lines: list[str] = []
        self.stop = threading.Event()

    def run(self):
        while not self.stop.wait(STEP_S):
            with self.lock:
                self.step()

    def step(self):
        running = list(self.requests)[: self.most]
        if not running:
            return
        drafts = self.pins.get("dspark_no_draft") != "on"
        budget = self.pins.get("dspark_budget", 0) if drafts else 0
        if not self.obeys:
            drafts, budget = True, 3 * len(running)
        context = sum(self.requests[r] for r in running)
        rows = len(running) + budget
        draft_ms = 0.5 if drafts else 0.0
        target_ms = 2.0 + 0.05 * rows + 0.0005 * context
        line = {"step": 1, "slots": running, "context_tokens": context}
        line["width"] = self.pins["dspark_gamma_limit"] if drafts else 0
        line |= {"rows": rows, "budget": budget, "gap_ms": 0.2 if self.synchronous else None}
        line |= {"draft_ms": draft_ms, "target_ms": target_ms}
        self.lines.append(json.dumps(line | {"worker_ms": draft_ms + target_ms + 0.3}))
        for rid in running:
            self.requests[rid] += 1

    def set(self, values):
        self.settings.append(values)
        if "dspark_trace" in values and self.traces is not None:
            if name := self.pins.get("dspark_trace"):
                (self.traces / f"{name}.jsonl").write_text("\n".join(self.lines) + "\n")
            self.lines = []
        self.pins |= values

    def info(self):
        worker = "something else" if self.foreign else "sglang-dspark 0"
        record = {"worker": worker, "gamma": 3, "server": IDENTITY, **BEFORE}
        state = {"effective_max_running_requests_per_dp": 4, "dspark_info_record": record}
        limits = {"max_req_input_len": 4000, "max_total_num_tokens": 9000}
        return {"model_path": "nowhere", "internal_states": [state], **limits}


def handler(pretender):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def reply(self, content):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content.encode())

        def do_GET(self):
            self.reply(json.dumps(pretender.info()))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/generate":
                return self.generate(body)
            with pretender.lock:
                if self.path == "/abort_request":
                    pretender.requests.pop(body["rid"], None)
                else:
                    pretender.set(body["server_args"])
            self.reply("[]")

        def generate(self, body):
            rid, first = body["rid"], len(body["input_ids"])
            last = first + body["sampling_params"]["max_new_tokens"]
            with pretender.lock:
                pretender.requests[rid] = first
            while pretender.requests.get(rid, last) < last and not pretender.stop.is_set():
                time.sleep(STEP_S)
            with pretender.lock:
                pretender.requests.pop(rid, None)
            with suppress(OSError):
                self.reply('data: {"output_ids": [1], "meta_info": {}}\n\ndata: [DONE]\n\n')

    return Handler


@contextmanager
def pretend(traces, **options):
    """(URL, pretender) of a running one."""
    pretender = Pretender(traces, **options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(pretender))
    threads = [threading.Thread(target=f) for f in (server.serve_forever, pretender.run)]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", pretender
    finally:
        pretender.stop.set()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()


def measure(traces, group, **options):
    with (
        pretend(traces, **options) as (url, pretender),
        Attached(url, traces).reach(lambda: None) as server,
    ):
        return Driver(server, 5, lambda: None).measure(group, 0), pretender


KINDS = ((None, None), (0, None), (4, None), (6, None), (4, 2))  # (budget, width)
GROUP = Group(2, 400, tuple(Cell(2, 400, *kind) for kind in KINDS))


def test_every_pin_of_a_group_is_set_and_counted(tmp_path):
    found, pretender = measure(tmp_path, GROUP)
    assert [(c.budget, c.width) for c in found.cells] == list(KINDS)
    for cell in found.cells:
        assert cell.failed is None and len(cell.steps) >= 5
        assert {s.rows for s in cell.steps} == {2 + (cell.budget or 0)}
        assert {s.width for s in cell.steps} == {0 if cell.budget is None else cell.width or 3}
        assert all(350 <= s.context <= 800 for s in cell.steps)
    assert pretender.requests == {} and list(tmp_path.iterdir()) == []


def test_an_attached_server_gets_its_settings_back(tmp_path):
    _, pretender = measure(tmp_path, GROUP)
    assert pretender.settings[0] == {"dspark_verify_mode": "compact", "dspark_gamma_limit": 3}
    assert pretender.settings[-1] == {
        "dspark_verify_mode": "cap-accept",
        "dspark_budget_fraction": 0.5,
        "dspark_gamma_limit": 2,
        "dspark_no_draft": "auto",
        "dspark_trace": None,
    }


def test_a_batch_that_has_grown_is_replaced(tmp_path):
    found, _ = measure(tmp_path, replace(GROUP, context=70))
    contexts = [s.context for c in found.cells for s in c.steps]
    assert contexts != sorted(contexts)  # grew, and was short again


def test_pins_that_are_not_executed_fail_their_cells(tmp_path):
    found, _ = measure(tmp_path, GROUP, obeys=False)
    reasons = {c.budget: c.failed for c in found.cells if c.width is None}
    assert reasons[6] is None  # a full block is what it does anyway
    assert "6 rows were asked for, the target was given 8 rows of blocks of 3" in reasons[4]
    assert "not executed" in reasons[None] and "not executed" in reasons[0]


def test_requests_that_never_run_together_fail_their_cells(tmp_path, monkeypatch):
    monkeypatch.setattr("sglang_dspark.profiling.profile.drive.START_S", 0.5)
    found, pretender = measure(tmp_path, GROUP, most=1)
    assert all("never ran together, at most 1 did" in c.failed for c in found.cells)
    assert pretender.requests == {}


def test_a_device_that_runs_behind_the_host_is_refused(tmp_path):
    with pytest.raises(TraceError, match="on a CPU server only"):
        measure(tmp_path, GROUP, synchronous=False)


def test_traces_written_elsewhere_and_other_workers_are_refused(tmp_path):
    with pytest.raises(TraceError, match="--trace-directory"), pretend(None) as (url, _):
        Attached(url, tmp_path).reach(lambda: None).__enter__()
    with (
        pytest.raises(AttachError, match="does not run our DSPARK worker"),
        pretend(tmp_path, foreign=True) as (url, _),
    ):
        Attached(url, tmp_path).limits()


# ------------------------------------------------------------------------------------ the repeats


def made_up(group, repeat, shaky):
    """A group as measured; a step of its shaky cell takes longer in every repeat."""
    cells = []
    for cell in group.cells:
        worker_ms = 20.0 + (5.0 * repeat if cell == shaky else 0.0)
        width = 0 if cell.budget is None else cell.width or 3
        line = StepLine(cell.requests, cell.context, width, cell.rows, 2, 15, worker_ms, 1)
        cells.append(CellSteps(budget=cell.budget, width=cell.width, steps=[line] * 6))
    kind = {"requests": group.requests, "context": group.context}
    return GroupSteps(repeat=repeat, seconds=10.0, cells=cells, **kind)


def repeats_of(minutes, shaky=None, done=0):
    """How often `collect` measured each group, and all that it kept."""
    plan = make_plan(Limits(3, 2, 4000, None), (150, 1350), steps=5, fine=False)
    job = Job(None, (), None, 5, False, minutes, 0.05, Path("out"), "made up")
    samples = Samples(None, [made_up(g, 0, shaky) for g in order(plan.groups, 0)[:done]])
    kept = []
    collect(job, plan, samples, lambda g, r: made_up(g, r, shaky), kept.append, mock.MagicMock())
    counts = Counter((g.requests, g.context) for g in samples.groups)
    return dict(counts), kept


def test_steady_cells_are_measured_three_times():
    counts, kept = repeats_of(minutes=100)
    assert set(counts.values()) == {3} and len(kept) == 18


def test_only_the_group_of_a_shaky_cell_goes_on_until_the_time_is_used():
    counts, _ = repeats_of(minutes=4, shaky=Cell(2, 450, 2))
    assert counts.pop((2, 450)) == 24 - 5 * 3  # of 10 s each
    assert set(counts.values()) == {3}


def test_the_first_repeat_is_completed_whatever_the_time():
    assert set(repeats_of(minutes=0)[0].values()) == {1}
    assert sum(repeats_of(minutes=1.5)[0].values()) == 9


def test_what_was_measured_before_is_not_measured_again():
    counts, kept = repeats_of(minutes=100, done=4)
    assert set(counts.values()) == {3} and len(kept) == 14


# ------------------------------------------------------------------------------------ the command

APP = typer.Typer()
APP.command(context_settings={"allow_extra_args": True})(profile)


def command(*options):
    return CliRunner().invoke(APP, list(map(str, options)), env={"COLUMNS": "120"})


@pytest.fixture
def folders(tmp_path):
    for name in ("traces", "out"):
        (tmp_path / name).mkdir()
    return tmp_path / "traces", tmp_path / "out"


def run(folders, *options):
    traces, out = folders
    with pretend(traces) as (url, _):
        attach = ("--attach", url, "--trace-directory", traces, "--contexts", "150,1350")
        return command(*attach, "--out", out, "--max-requests", "2", *options)


def test_the_whole_command_writes_a_table_of_the_pretended_machine(folders):
    result = run(folders, "--json", "--minutes", "0")
    assert result.exit_code == 0, result.output
    _, out = folders
    assert {f.name for f in out.iterdir()} == {
        *("table.json", "samples.jsonl", "figure.png", "summary.json")
    }
    record = json.loads(result.stdout.splitlines()[-1])
    assert record == json.loads((out / "summary.json").read_text())
    assert record["failed"] == {} and record["measured"] == record["cells"] > 20
    assert record["repeats"] == {"fewest": 1, "most": 1}
    assert record["held_out"]["context"] == 450 and record["held_out"]["reached"] is True
    assert record["verdict"] == {"level": "use", "reasons": []}
    table = parse_table((out / "table.json").read_text())
    assert table.draft.widest().ms == pytest.approx((0.5, 0.5))
    assert table.verify.ms[0][0] == pytest.approx(2.125, rel=0.03)
    assert table.provenance.kind == "profiled" and table.provenance.target == "aa"
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_goes_on_where_it_stopped(folders):
    _, out = folders
    assert run(folders, "--minutes", "0").exit_code == 0
    whole = (out / "samples.jsonl").read_text()
    lines = whole.splitlines(keepends=True)
    cut = "".join(lines[:4]) + lines[4][:30]  # three groups, and one that was being written
    (out / "samples.jsonl").write_text(cut)

    refused = run(folders, "--resume")
    assert refused.exit_code == 2 and "table.json" in refused.output
    for name in ("table.json", "figure.png", "summary.json"):
        (out / name).unlink()
    assert run(folders, "--resume", "--minutes", "0").exit_code == 0
    resumed = (out / "samples.jsonl").read_text().splitlines(keepends=True)
    assert resumed[:4] == lines[:4] and len(resumed) == len(lines)
    keys = [(g.repeat, g.requests, g.context) for g in read_samples(out / "samples.jsonl").groups]
    assert len(set(keys)) == len(keys)


def test_samples_of_another_plan_are_not_continued(folders):
    _, out = folders
    assert run(folders, "--minutes", "0").exit_code == 0
    for name in ("table.json", "figure.png", "summary.json"):
        (out / name).unlink()
    before = (out / "samples.jsonl").read_text()
    result = run(folders, "--resume", "--full")
    assert result.exit_code == 2 and "another plan" in result.output
    assert (out / "samples.jsonl").read_text() == before


def test_nothing_is_overwritten_without_force(folders):
    _, out = folders
    (out / "samples.jsonl").write_text("mine\n")
    assert run(folders).exit_code == 2
    assert (out / "samples.jsonl").read_text() == "mine\n"
    assert run(folders, "--resume").exit_code == 2  # not a file of ours
    assert run(folders, "--force", "--minutes", "0").exit_code == 0
    assert read_samples(out / "samples.jsonl").repeats == 1


def test_a_dry_run_lists_cells_and_time_and_starts_nothing(tmp_path):
    result = command("--dry-run", "--full", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout.splitlines()[-1])
    assert record["minutes"] == 30.0 and record["expected_seconds_per_repeat"] > 60
    assert {c["requests"] for c in record["cells"]} == {1, 2, 4, 8, 16, 32, 64}
    assert any(c["held_out"] for c in record["cells"])
    assert "no draft*" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--attach", "http://127.0.0.1:9"), "--trace-directory"),
        (("--attach", "http://127.0.0.1:9", "--trace-directory", "nowhere"), "no such folder"),
        (("--attach", "http://127.0.0.1:9", "--trace-directory", "."), "no answer"),
        (("--attach", "http://127.0.0.1:9", "--trace-directory", ".", "--", "--tp", "1"), "as it"),
        (("--trace-directory", "."), "--attach"),
        (("--target", "."), "neither"),
        (("--contexts", "a,b"), "whole numbers"),
        (("--contexts", "5", "--dry-run"), "at least two"),
        (("--resume", "--out", "nowhere"), "no nowhere/samples.jsonl"),
        (("--minuts", "3"), "No such option"),
    ],
)
def test_wrong_use_exits_with_2_and_the_reason(options, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a profile that a user made here is no part of the test
    result = command(*options)
    assert result.exit_code == 2
    assert word in " ".join(result.output.split())
