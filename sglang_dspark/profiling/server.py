"""A server process of our own: start it, wait until it answers, stop it with all its children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import httpx
import psutil

HOST = "127.0.0.1"


class ServerError(RuntimeError):
    """The server did not start, or ended; the text holds the last lines of its log."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Server:
    """`python -m sglang.launch_server` with the given flags, on this machine.

    Args:
        log: the file that takes its output; None leaves the output on the terminal.
        port: None takes a free one.

    Used as a context manager; leaving it ends the process group, also after an interrupt.
    """

    def __init__(
        self,
        flags: Sequence[str],
        *,
        log: Path | None,
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        module: str = "sglang.launch_server",
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.log = log
        self.command = [sys.executable, "-m", module, "--host", HOST, "--port", str(self.port)]
        self.command += [str(flag) for flag in flags]
        self._environment = {"HF_HUB_OFFLINE": "1", **os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the process and return at once; `wait` until it answers."""
        children = set(psutil.Process().children())
        try:
            with self._open_log() as sink:
                self._process = subprocess.Popen(
                    self.command,
                    stdout=sink,
                    stderr=subprocess.STDOUT if sink else None,
                    env=self._environment,
                    start_new_session=True,
                )
        except BaseException:  # an interrupt may fall between the fork and the assignment
            for child in set(psutil.Process().children()) - children:
                child.kill()
                child.wait()
            raise

    def _open_log(self) -> AbstractContextManager[IO[bytes] | None]:
        if self.log is None:
            return nullcontext()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return self.log.open("wb")

    def wait(self, timeout_s: float = 180, tick: Callable[[], None] = lambda: None) -> None:
        """Return once the server answers.

        Args:
            tick: called about twice a second, for a progress display.

        Raises:
            ServerError: the process ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check_start()
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            tick()
            time.sleep(0.5)
        raise ServerError(f"no answer after {timeout_s:.0f} s:\n{self.log_tail()}")

    def check_start(self) -> None:
        """Raises ServerError if the process has ended before it answered."""
        if self._process is None or self._process.poll() is not None:
            log = self.log_tail() + self._own_words()
            raise ServerError(f"the server ended while starting:\n{log}")

    def _own_words(self) -> str:
        """What our plugin said before it stopped the start; tracebacks of others follow it."""
        if self.log is None:
            return ""
        lines = self.log.read_text(errors="replace").splitlines()
        said = dict.fromkeys(line for line in lines if line.startswith("sglang-dspark:"))
        return "".join(f"\n{line}" for line in said) + f"\n(log: {self.log})"

    def start(self, timeout_s: float = 180) -> Server:
        """Launch and wait."""
        self.launch()
        try:
            self.wait(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def wait_for_end(self) -> None:
        """Return when the server ends by itself.

        Raises:
            ServerError: it ended with a failure.
        """
        if self._process is not None and (status := self._process.wait()):
            raise ServerError(f"the server ended with status {status}\n{self.log_tail()}")

    def stop(self) -> None:
        """End the whole process group; does nothing when it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        family = self._family(process.pid)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            _, family = psutil.wait_procs(family, timeout=10)
            if not family:
                break
        process.wait()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def memory_pss_mb(self) -> float:
        """Proportional memory of all processes of the server, in MB."""
        if self._process is None:
            raise ServerError("the server is not running")
        total = 0
        for process in self._family(self._process.pid):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / 1e6

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log; nothing where the output went to the terminal."""
        if self.log is None:
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    @staticmethod
    def _family(pid: int) -> list[psutil.Process]:
        try:
            parent = psutil.Process(pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
