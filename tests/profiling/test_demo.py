"""`sglang-dspark demo` end to end, against stand-ins for both servers: no model, no SGLang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(180)

FAKE = Path(__file__).parent / "fake"
HEADLINE = {"no_spec_tok_s", "dspark_tok_s", "speedup", "speedup_low", "accept_length"}


@pytest.fixture
def folder(tmp_path):
    """A target, a draft and prompts to name on the command line."""
    for name in ("target", "draft", "prompts"):
        (tmp_path / name).mkdir()
    for domain in ("code", "text"):
        lines = [json.dumps({"text": f"{domain} prompt {i}"}) for i in range(44)]
        (tmp_path / "prompts" / f"{domain}.jsonl").write_text("\n".join(lines))
    return tmp_path


def start_demo(folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    paths = [a for n in ("target", "draft", "prompts") for a in (f"--{n}", str(folder / n))]
    command = [sys.executable, "-m", "sglang_dspark.cli", "demo", *paths, "--out", "out", *options]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(FAKE), "COLUMNS": "100", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_demo(folder: Path, *options: str, **environment: str) -> tuple[int, str, dict]:
    process = start_demo(folder, *options, **environment)
    text, _ = process.communicate(timeout=120)
    file = folder / "out" / "demo.json"
    return process.returncode, text, json.loads(file.read_text()) if file.exists() else {}


def test_identical_outputs_give_status_0_and_the_promised_record(folder):
    status, text, record = run_demo(folder)
    assert status == 0, text
    assert set(record) == {
        *("outputs_identical", "prompts", "tokens", "memory_pss_mb", "excused_flips"),
        *("domains", "details", "provenance"),
    }
    assert record["outputs_identical"] is True
    assert (record["prompts"], record["tokens"]) == (80, 80 * 128)
    assert record["excused_flips"] == 0
    assert record["memory_pss_mb"] > 1
    assert set(record["domains"]) == {"code", "text"}
    for domain in record["domains"].values():
        assert set(domain) == HEADLINE
        assert domain["accept_length"] == 3.0
        assert 1.2 < domain["speedup_low"] <= domain["speedup"] < 2.5
    details = record["details"]["code"]
    assert details["overhead_ms"] == 1.0 and details["step_ms"] == 4.0
    assert details["sglang_accept_length"] == pytest.approx(128 / 43, abs=1e-3)
    assert len(details["dspark_tok_s_by_round"]) == 20
    assert {"command", "date", "versions", "machine"} <= set(record["provenance"])
    for shown in ("Token-identical", "speed ratio", "accept length", "made up", "code 1"):
        assert shown in text


def test_a_flip_gives_status_1_and_is_printed(folder):
    status, text, record = run_demo(folder, "--rounds", "2", FAKE_FLIP="1")
    assert status == 1
    assert record["outputs_identical"] is False
    assert record["tokens"] == 2 * 2 * 2 * 6  # comparison ends at the flip
    assert "NOT token-identical" in text and "output token 5" in text


def test_near_ties_are_excused_but_not_many_of_them(folder):
    status, text, record = run_demo(folder, "--rounds", "2", FAKE_FLIP="1", FAKE_GAP="0.000001")
    assert record["excused_flips"] == 8
    assert status == 1 and record["outputs_identical"] is False
    assert "(excused)" in text


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_server_behind(folder, sign):
    process = start_demo(folder, "--rounds", "15", "--prompts-per-turn", "2")
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(children) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(sign)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert len(children) == 2 and not any(child.is_running() for child in children)
    assert "Traceback" not in text


def test_too_few_prompts_stop_it_before_a_server_starts(folder):
    status, text, _ = run_demo(folder, "--rounds", "30")
    assert status == 2
    assert "44prompts,62areneeded" in "".join(text.split())
    assert not (folder / "out").exists()


def test_a_server_that_dies_shows_why(folder):
    status, text, _ = run_demo(folder, FAKE_DEATH="1")
    assert status == 2
    assert "the server ended while starting" in text
    assert "this is why" in text.splitlines()[-2] and "(log: out/" in text.splitlines()[-1]
