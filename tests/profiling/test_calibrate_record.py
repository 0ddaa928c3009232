"""Recording against a stand-in for a running DSPARK server."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_dspark.profiling.calibrate.record import (
    RecordError,
    RecordPlan,
    record_traces,
    recording_server,
    rounds_per_domain,
)

START = {
    "worker": "sglang-dspark fake", "gamma": 7, "mode": "compact", "gamma_limit": 5,
    "no_draft": "auto", "pinned_drafts": 12, "pinned_fraction": None, "verified_requests": 0,
}  # fmt: skip
JUDGED = 10  # blocks of an answer


class Fake:
    """What the server was told and asked."""

    def __init__(self, folder):
        self.folder, self.record = folder, dict(START)
        self.steered, self.asked, self.fails = [], [], False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, content, status=200):
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content.encode())

            def do_GET(self):
                state = {"internal_states": [{"dspark_info_record": fake.record}]}
                self.reply(json.dumps(state))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/set_internal_state":
                    fake.steer(body["server_args"])
                    return self.reply("{}")
                fake.asked.append(body)
                fake.record["verified_requests"] += JUDGED
                answer = {"output_ids": [1], "meta_info": {}}
                self.reply(f"data: {json.dumps(answer)}\n\n", 500 if fake.fails else 200)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def steer(self, settings):
        self.steered.append(settings)
        if (name := settings.get("dspark_trace")) and self.folder is not None:
            (self.folder / f"{name}.jsonl").write_text("a trace\n")

    @property
    def traces(self):
        return [s["dspark_trace"] for s in self.steered if "dspark_trace" in s]


@pytest.fixture
def fake(tmp_path):
    found = Fake(tmp_path)
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()


class Quiet:
    def __init__(self):
        self.advanced = 0

    def stage(self, text, turns=None):
        pass

    def tick(self):
        pass

    def advance(self):
        self.advanced += 1


def plan(folder, **changed):
    prompts = {"code": ["def f(a, b, c, d, e, g, h, i, j, k):"] * 3, "text": ["Once upon"] * 3}
    return RecordPlan(
        **{"prompts": prompts, "rounds": 100, "folder": folder, "concurrency": 2} | changed
    )


def test_it_asks_until_there_are_enough_blocks(fake, tmp_path):
    files = record_traces(fake.url, plan(tmp_path), Quiet())
    assert list(files) == ["code", "text", "code-greedy", "text-greedy"]
    assert fake.traces == ["code", None, "code-greedy", None, "text", None, "text-greedy", None]
    sampled = [b for b in fake.asked if b["sampling_params"]["temperature"] == 1]
    greedy = [b for b in fake.asked if b["sampling_params"]["temperature"] == 0]
    assert len(sampled) == 2 * 16  # two loads of eight give 160 blocks, one alone 80
    assert len({b["rid"] for b in fake.asked}) == len(fake.asked)
    assert sorted(b["text"] for b in greedy) == sorted(
        t for p in plan(tmp_path).prompts.values() for t in p
    )


def test_progress_ends_at_the_rounds_asked_for(fake, tmp_path):
    progress = Quiet()
    record_traces(fake.url, plan(tmp_path, greedy=False), progress)
    assert progress.advanced == 200


def test_whole_blocks_are_judged_and_the_server_is_put_back(fake, tmp_path):
    record_traces(fake.url, plan(tmp_path, greedy=False), Quiet())
    assert fake.steered[0] == {
        "dspark_verify_mode": "cap-accept", "dspark_gamma_limit": 7, "dspark_no_draft": "off",
        "dspark_budget_fraction": 1.0,
    }  # fmt: skip
    assert fake.steered[-1] == {
        "dspark_verify_mode": "compact", "dspark_gamma_limit": 5, "dspark_no_draft": "auto",
        "dspark_budget": 12,
    }  # fmt: skip


def test_a_failure_ends_it_and_puts_the_server_back(fake, tmp_path):
    fake.fails = True
    with pytest.raises(RecordError, match="every request failed: HTTP 500"):
        record_traces(fake.url, plan(tmp_path), Quiet())
    assert fake.traces == ["code", None]
    assert fake.steered[-1]["dspark_verify_mode"] == "compact"


def test_a_trace_elsewhere_is_missed(fake, tmp_path):
    with pytest.raises(RecordError, match="--trace-directory"):
        record_traces(fake.url, plan(tmp_path / "elsewhere"), Quiet())


def test_another_worker_is_refused(fake, tmp_path):
    fake.record = {"worker": "stock"}
    with pytest.raises(RecordError, match="does not run the sglang-dspark worker"):
        record_traces(fake.url, plan(tmp_path), Quiet())
    assert not fake.steered


def test_half_of_the_rounds_is_enough_for_the_held_out_half():
    assert rounds_per_domain(20_000, 2, 128) >= 20_000 + 128
    assert rounds_per_domain(3, 1, 2) >= 6 + 2


def test_a_server_of_our_own_starts_in_cap_accept_and_may_write(tmp_path):
    folder = tmp_path / "traces"
    recording_server(tmp_path, tmp_path, plan(folder), flags=["--x"], log=tmp_path / "log")
    from sglang_dspark.settings import load_settings

    settings = load_settings(str(folder / "settings.toml"))
    assert settings.trace.directory == folder.resolve()
    assert settings.cost_table == "off"
