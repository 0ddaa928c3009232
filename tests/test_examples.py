"""`examples/` as a user runs it: the script starts a server, the client talks to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.server import Server
from tests.server.servers import Pairs, bundled_pair

EXAMPLES = Path(__file__).parents[1] / "examples"
WEIGHTS_LIMIT = 40_000_000  # bytes

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server started by serve.sh, on the bundled pair where it is complete."""
    folder = tmp_path_factory.mktemp("examples")
    pair = bundled_pair() or Pairs(folder).get("noisy")
    server = Server(
        [],
        log=folder / "serve.log",
        environment={
            "TARGET": str(pair.target),
            "DRAFT": str(pair.draft),
            "PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",
        },
    )
    server.command = ["sh", str(EXAMPLES / "serve.sh"), "--host", "127.0.0.1"]
    server.command += ["--port", str(server.port), "--sleep-on-idle", "--max-running-requests", "4"]
    try:
        yield server.start(timeout_s=600)
    finally:
        server.stop()


def test_serve_sh_starts_our_worker(served):
    client = Client(served.url)
    assert "sglang-dspark" in client.worker_record()["worker"]
    assert "serves DSPARK" in served.log.read_text()


def test_chat_py_prints_an_answer(served):
    command = [sys.executable, EXAMPLES / "chat.py", "--url", served.url, "--max-tokens", "16"]
    shown = subprocess.run([*command, "Hello"], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip()


def test_chat_py_asks_until_the_input_ends(served):
    command = [sys.executable, EXAMPLES / "chat.py", "--url", served.url, "--max-tokens", "4"]
    shown = subprocess.run(
        command, input="Hello\n\nAgain\n", capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("> ") >= 3


def test_the_scripts_may_be_run():
    assert os.access(EXAMPLES / "serve.sh", os.X_OK)


def test_the_bundled_weights_are_small():
    files = list((EXAMPLES / "tiny").rglob("*.safetensors"))
    assert sum(file.stat().st_size for file in files) < WEIGHTS_LIMIT
