"""`sglang-dspark report` on a made-up sweep: what it writes, and what it refuses."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sglang_dspark.cli.report import report

GAMMA = 7
ACCEPT = {"code": 0.86, "text": 0.66}  # per position
ARMS = ("no-speculation", "static-1", "static-3", "static-5", "static-7", "compact", "cap-accept")
PNG = b"\x89PNG\r\n\x1a\n"


class MadeUpSweep:
    """A machine whose step takes 6 ms, and more with rows past 24; drafts cost 2 ms."""

    def __init__(self, arms=ARMS, workloads=("code", "text"), loads=(1, 4, 16, 64), rounds=6):
        self.arms, self.workloads, self.loads, self.rounds = arms, workloads, loads, rounds
        self._rng = np.random.default_rng(3)

    def lines(self) -> list[dict]:
        return [self.header(), *self.skipped(), *self.turns()]

    def header(self) -> dict:
        return {
            "kind": "header",
            "format": "sglang-dspark/sweep",
            "version": 1,
            "plan": {"rounds": self.rounds, "concurrency": list(self.loads), "seed": 0},
            "servers": [
                {"name": "plain", "flags": ["--model-path", "target"]},
                {
                    "name": "dspark",
                    "flags": ["--speculative-algorithm", "DSPARK"],
                    "worker": "sglang-dspark 0.1.0",
                    "gamma": GAMMA,
                    "cost_table": "made-up",
                },
            ],
            "arms": [
                {
                    "name": arm,
                    "server": "plain" if arm.startswith("no-spec") else "dspark",
                    "control": {} if arm.startswith("no-spec") else {"dspark_verify_mode": arm},
                }
                for arm in self.arms
            ],
            "target": "examples/tiny/target",
            "draft": "examples/tiny/draft",
            "machine": {"cpu": "made up", "cores": 2},
            "versions": {"sglang": "0.5.23", "sglang-dspark": "0.1.0"},
            "command": "sglang-dspark sweep profiling/plans/made-up.toml",
            "date": "2001-02-03T04:05:06+00:00",
        }

    def skipped(self) -> list[dict]:
        return [{"kind": "skipped", "arm": "eagle3", "reason": "no EAGLE3 head for <this> target"}]

    def turns(self) -> list[dict]:
        turns = []
        for workload in self.workloads:
            for load in self.loads:
                for number in range(self.rounds):
                    slow = 1 + 0.08 * self._rng.standard_normal()  # shared by the round
                    for order, arm in enumerate(self.arms):
                        turns.append(self._turn(workload, load, number, order, arm, abs(slow)))
        return turns

    def _turn(self, workload, load, number, order, arm, slow) -> dict:
        accept = ACCEPT.get(workload, 0.75)
        window = self._window(arm, workload, load)
        tokens, requests = 64, max(2, 2 * load)
        lens = self._rng.geometric(1 - accept, size=4000) - 1  # drafts that would be accepted
        windows = np.clip(self._rng.poisson(window, 4000), 0, GAMMA)
        if arm.startswith("static"):
            windows = np.full(4000, window)
        kept = np.minimum(lens, windows)
        rows = load * (1 + (GAMMA if arm == "cap-accept" else windows.mean()))
        plain = arm.startswith("no-spec")
        step_ms = 6 + 0.05 * max(0, (load if plain else rows) - 24) + (0 if plain else 2)
        step_ms *= slow * (1 + 0.02 * self._rng.standard_normal())
        length = 1.0 if plain else 1 + kept.mean()
        steps = math.ceil(requests / load * tokens / length)
        seconds = steps * step_ms / 1000
        mine = seconds * load / requests * (1 + 0.05 * self._rng.standard_normal(requests))
        return {
            "kind": "turn",
            "round": number,
            "workload": workload,
            "concurrency": load,
            "arm": arm,
            "order": order,
            "seconds": seconds,
            "sampling": {"temperature": 0.0, "max_new_tokens": tokens, "seed": number},
            "requests": [
                {
                    "tokens": tokens,
                    "seconds": float(s),
                    "first_token_s": float(s) * 0.1,
                    "spec_verify_ct": None if plain else math.ceil(tokens / length),
                }
                for s in mine
            ],
            "worker": None
            if plain
            else self._worker(arm, steps, load, windows, kept, lens, step_ms),
            "draft_lens_by_domain": (
                {"code": float(windows.mean()) + 1, "text": max(0.0, float(windows.mean()) - 1)}
                if workload == "mixed"
                else {}
            ),
        }

    def _window(self, arm, workload, load) -> float:
        if arm.startswith("static"):
            return int(arm.split("-")[1])
        return max(0.4, (6.0 if workload == "code" else 4.0) - 0.9 * math.log2(load))

    def _worker(self, arm, steps, load, windows, kept, lens, step_ms) -> dict:
        pairs = steps * load
        share = pairs / len(kept)
        ceiling = int(np.minimum(lens, GAMMA).mean() * pairs) if arm == "cap-accept" else 0
        return {
            "steps": steps,
            "no_draft_steps": 1 if arm == "compact" and load == 64 else 0,
            "verified_requests": pairs,
            "drafted": GAMMA * pairs,
            "verified_drafts": round(windows.mean() * pairs),
            "accepted_drafts": round(kept.mean() * pairs),
            "accepted_histogram": [
                round(n * share) for n in np.bincount(kept, minlength=GAMMA + 1)
            ],
            "draft_len_histogram": [
                round(n * share) for n in np.bincount(windows, minlength=GAMMA + 1)
            ],
            "planned_rows": pairs,
            "ceiling_drafts": ceiling,
            "ceiling_requests": pairs if arm == "cap-accept" else 0,
            "priced_steps": steps,
            "predicted_ms": 0.97 * step_ms * steps,
            "actual_ms": step_ms * steps,
            "step_seconds": step_ms * steps / 1000,
            "draft_forward_seconds": 0.002 * steps,
            "target_forward_seconds": (step_ms - 2) * steps / 1000,
        }


def made_up_trace(path: Path, accept: float, *, ceiling: bool = True, steps: int = 200) -> Path:
    """Blocks of a head that is too sure of itself, in cap-accept unless told otherwise."""
    rng = np.random.default_rng(1)
    server = {"target": "t", "draft": "d", "gamma": GAMMA}
    header = {"schema": "sglang-dspark-trace-1", "worker": "0.1.0", "gamma": GAMMA, "lag": 2}
    lines = [json.dumps({**header, "max_requests": 4, "server": server})]
    for step in range(steps):
        logits = rng.normal(math.log(accept / (1 - accept)), 1.0, (4, GAMMA))
        confidence = 1 / (1 + np.exp(-1.4 * logits))
        right = rng.random((4, GAMMA)) < 1 / (1 + np.exp(-logits))
        whole = np.cumprod(right, axis=1).sum(axis=1)
        kept = np.minimum(whole, 3)
        record = {
            "step": step, "slots": [1, 2, 3, 4], "generations": [1] * 4, "context_tokens": 9,
            "gamma": GAMMA, "drafts": True, "width": GAMMA, "budget": 12, "rows": 16,
            "reason": "search",
            "predicted_ms": 10.0 + step % 5, "gap_ms": 1.0 if step else None,
            "worker_ms": float((9.0 + step % 5) * (1 + 0.05 * rng.standard_normal())),
            "accepted": kept.tolist(), "draft_lens": [3] * 4,
            "survival": np.cumprod(confidence, axis=1).round(6).tolist(),
            "confidence_logits": (1.4 * logits).round(5).tolist(),
        }  # fmt: skip
        lines.append(json.dumps(record | ({"ceiling": whole.tolist()} if ceiling else {})))
    path.write_text("\n".join(lines) + "\n")
    return path


def made_up_calibration(folder: Path, trace: Path) -> Path:
    from sglang_dspark.profiling.calibrate.report import calibrate
    from sglang_dspark.profiling.traces import read_trace

    found = calibrate({"code": read_trace(trace)}, {}, min_rounds=50, command="calibrate it")
    folder.mkdir()
    (folder / "report.json").write_text(found.model_dump_json())
    return folder


def made_up_profile(folder: Path) -> Path:
    cells = [
        {
            "step_ms": 5.0 + i,
            "predicted_ms": (5.0 + i) * (1.02 if i % 2 else 0.99),
            "held_out": i > 9,
        }
        for i in range(14)
    ]
    folder.mkdir()
    summary = {"schema": "sglang-dspark/profile-summary", "details": cells}
    summary["provenance"] = {"command": "profile it"}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def run_report(folder: Path, *arguments: object):
    """In this process: a fresh one would spend its time on imports."""
    app = typer.Typer()
    app.command()(report)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(app, [str(a) for a in arguments])


class Links(HTMLParser):
    """What a page would load or point to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.loaded += [given[k] for k in ("src", "srcset", "data", "poster") if k in given]
        self.targets += [given["href"]] if "href" in given else []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A report with everything: (folder, page, Markdown, JSON)."""
    folder = tmp_path_factory.mktemp("whole")
    results = MadeUpSweep(loads=(1, 16), rounds=4).lines()
    turn = next(r for r in results if r.get("arm") == "compact" and r["kind"] == "turn")
    turn["requests"][0] |= {"error": "HTTP 500: <b>out</b> of *memory*", "tokens": 0}
    write(folder / "sweep.jsonl", results)
    code = made_up_trace(folder / "code.jsonl", 0.85)
    text = made_up_trace(folder / "text.jsonl", 0.65)
    done = run_report(
        folder, "sweep.jsonl", "--out", "report", "--json", "--trace", code, "--trace", text,
        "--calibration", made_up_calibration(folder / "sts", code),
        "--profile", made_up_profile(folder / "profile"),
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    page, markdown = ((folder / "report" / f"report.{x}").read_text() for x in ("html", "md"))
    return folder / "report", page, markdown, json.loads(done.stdout)


FIGURES = {
    "ratios", "frontier", "load", "acceptance", "threshold", "reliability", "step_time"
}  # fmt: skip


def test_every_figure_is_there_with_its_caption_and_the_command_behind_it(whole):
    folder, page, markdown, record = whole
    assert {p.stem for p in folder.glob("*.png")} == FIGURES
    assert {f["name"] for f in record["figures"]} == FIGURES
    assert record["left_out"] == []
    for name in FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(PNG)
        assert f"]({name}.png)" in markdown
        assert page.count(f'id="{name}"') == 1
    assert page.count('src="data:image/png;base64,') == len(FIGURES)
    assert page.count("<figcaption>") == page.count("Data: ") == len(FIGURES)
    for command in (
        "sglang-dspark sweep profiling/plans/made-up.toml",
        "calibrate it",
        "profile it",
    ):
        assert command in page


def test_the_page_stands_alone(whole):
    links = Links(whole[1])
    assert links.loaded and all(x.startswith("data:image/png;base64,") for x in links.loaded)
    assert links.targets and all(x.removeprefix("#") in links.ids for x in links.targets)
    assert not {"script", "link", "iframe", "object", "base"} & set(links.tags)
    assert not re.search(r"url\(|@import|https?://", whole[1])


def test_provenance_sampling_skipped_arms_and_errors_are_told(whole):
    _, page, markdown, _ = whole
    for text in (page, markdown):
        for said in ("made up", "0.5.23", "2001-02-03", "max_new_tokens", "eagle3", "made-up"):
            assert said in text
    assert "no EAGLE3 head for &lt;this&gt; target" in page
    assert "HTTP 500: &lt;b&gt;out&lt;/b&gt; of *memory*" in page
    assert r"HTTP 500: \<b>out\</b> of \*memory\*" in markdown
    sent = sum(len(t["requests"]) for t in MadeUpSweep(loads=(1, 16), rounds=4).turns())
    assert f"{sent:,} sent, 1 failed" in page
    assert "1 requests failed" not in page and "1 request failed" in page
    assert "4" in re.search(r"<dt>Rounds per point</dt><dd>(.*?)</dd>", page)[1]


def test_json_holds_the_points_and_stands_alone_on_standard_output(whole):
    points = whole[3]["points"]
    assert len(points) == 2 * 2 * len(ARMS)
    compact = [p for p in points if p["arm"] == "compact"]
    assert sum(p["errors"] for p in points) == sum(p["errors"] for p in compact) == 1
    assert all(p["vs_best_fixed"]["low"] is not None for p in compact)
    assert "NaN" not in json.dumps(points)


def test_a_single_round_has_no_intervals_and_says_so(tmp_path):
    write(tmp_path / "s.jsonl", MadeUpSweep(loads=(1, 4), rounds=1, workloads=("code",)).lines())
    done = run_report(tmp_path, "s.jsonl", "--out", "r", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert any(note.startswith("One round per point") for note in record["notes"])
    for point in record["points"]:
        assert point["tokens_per_s"]["low"] is None
        assert point["vs_best_fixed"] is None
    assert {x["title"].split(" (")[0] for x in record["left_out"]} == {
        "Confidence threshold in place of the scheduler", "Reliability of the confidences"
    }  # fmt: skip


def test_a_single_arm_without_speculation_leaves_out_what_needs_more(tmp_path):
    sweep = MadeUpSweep(arms=("no-speculation",), loads=(4,), rounds=2)
    write(tmp_path / "s.jsonl", sweep.lines())
    done = run_report(tmp_path, "s.jsonl", "--out", "r", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert {f["name"] for f in record["figures"]} == {"frontier", "load"}
    assert len(record["left_out"]) == len(FIGURES) - 2
    page = (tmp_path / "r" / "report.html").read_text()
    assert all(x["reason"] in page for x in record["left_out"])


def test_a_trace_without_a_ceiling_has_step_times_but_no_threshold_sweep(tmp_path):
    write(tmp_path / "s.jsonl", MadeUpSweep(loads=(4,), rounds=1, workloads=("mixed",)).lines())
    trace = made_up_trace(tmp_path / "t.jsonl", 0.8, ceiling=False)
    done = run_report(tmp_path, "s.jsonl", "--out", "r", "--json", "--trace", trace)
    record = json.loads(done.stdout)
    assert not (tmp_path / "r" / "threshold.png").exists()
    assert any("record one in cap-accept" in x["reason"] for x in record["left_out"])
    (steps,) = [f for f in record["figures"] if f["name"] == "step_time"]
    assert "over the steps of t" in steps["caption"]
    assert "Mean draft_len by domain" in (tmp_path / "r" / "report.html").read_text()


def test_nothing_is_overwritten_without_force(tmp_path):
    sweep = MadeUpSweep(("no-speculation", "compact"), ("code",), loads=(1,), rounds=2)
    write(tmp_path / "s.jsonl", sweep.lines())
    assert run_report(tmp_path, "s.jsonl", "--out", "r").exit_code == 0
    (tmp_path / "r" / "load.png").write_text("mine")
    (stale := tmp_path / "r" / "threshold.png").write_text("of an earlier report")
    again = run_report(tmp_path, "s.jsonl", "--out", "r")
    assert again.exit_code == 2 and "--force" in again.stderr
    assert (tmp_path / "r" / "load.png").read_text() == "mine"
    assert run_report(tmp_path, "s.jsonl", "--out", "r", "--force").exit_code == 0
    assert (tmp_path / "r" / "load.png").read_bytes().startswith(PNG)
    assert not stale.exists()


HEADER = MadeUpSweep(loads=(1,), rounds=1, workloads=("code",)).header()
TURNS = MadeUpSweep(loads=(1,), rounds=1, workloads=("code",)).turns()


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([HEADER], "no turns yet"),
        ([TURNS[0]], "no header line"),
        ([HEADER, TURNS[0], TURNS[0]], "in the file twice"),
        ([HEADER, {**TURNS[0], "arm": "other"}], "the header lists the arms"),
        ([HEADER, {**TURNS[0], "seconds": 0}], "must be above 0"),
        ([HEADER, {**TURNS[0], "rounds": 1}], "line 2: rounds"),
    ],
)
def test_results_that_contradict_themselves_are_refused(tmp_path, records, reason):
    write(tmp_path / "s.jsonl", records)
    done = run_report(tmp_path, "s.jsonl", "--out", "r")
    assert done.exit_code == 2 and reason in " ".join(done.stderr.split())
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("missing.jsonl",), "cannot be read"),
        (("s.jsonl", "--trace", "s.jsonl"), "expected a trace of schema"),
        (("s.jsonl", "--trace", "t.jsonl", "--trace", "t.jsonl"), "two files are named t"),
        (("s.jsonl", "--calibration", "."), "sglang-dspark calibrate"),
        (("s.jsonl", "--profile", "."), "sglang-dspark profile"),
        (("s.jsonl", "--out", "s.jsonl"), "is a file; give a folder"),
    ],
)
def test_wrong_inputs_are_refused_with_the_reason(tmp_path, options, reason):
    write(tmp_path / "s.jsonl", [HEADER, *TURNS])
    made_up_trace(tmp_path / "t.jsonl", 0.8, steps=2)
    done = run_report(tmp_path, *options)
    assert done.exit_code == 2 and reason in " ".join(done.stderr.split())
