"""`sglang-dspark serve` against a stand-in for SGLang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from sglang_dspark.profiling.server import free_port

pytestmark = pytest.mark.timeout(120)

FAKE = Path(__file__).parent / "fake"


def start_serve(*options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sglang_dspark.cli", "serve", *options],
        env={**os.environ, "PYTHONPATH": str(FAKE), "COLUMNS": "100", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if word in line:
            break
    return text


def test_it_says_how_to_call_the_server_and_stops_with_it():
    port = free_port()
    models = ("--target", "my/target", "--draft", "my/draft")
    process = start_serve(*models, "--port", str(port), "--speculative-dspark-block-size", "3")
    text = read_until(process, "Ctrl-C stops")
    assert f"DSPARK is served at http://127.0.0.1:{port}" in text
    assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    (child,) = psutil.Process(process.pid).children()
    command = " ".join(child.cmdline())
    assert "--model-path my/target --speculative-draft-model-path my/draft" in command
    assert "--speculative-algorithm DSPARK --speculative-dspark-block-size 3" in command
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not child.is_running()


def test_a_server_that_ends_ends_it_with_a_failure():
    process = start_serve("--target", "a", "--draft", "b", "--port", "not-a-port")
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "--port" in text

    process = start_serve("--target", "a", "--draft", "b", FAKE_DEATH="1")
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "this is why" in text and "the server ended while starting" in text
