"""The server under measurement: one of our own, or one that runs already."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sglang_dspark.draft.checkpoint import read_draft_config
from sglang_dspark.profiling.client import Client, RequestError
from sglang_dspark.profiling.profile.cells import Limits
from sglang_dspark.profiling.profile.pins import Pins, choice_before
from sglang_dspark.profiling.server import Server

START_TIMEOUT_S = 900
TRACE_MB = 256
UNKNOWN_VOCABULARY = 1000  # every model has that many


class AttachError(RuntimeError):
    """The running server cannot be profiled; the text says why and what to change."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A server that takes pins."""

    url: str
    pins: Pins
    limits: Limits
    identity: Mapping[str, Any]  # the fields of a cost table's provenance that name a server
    vocabulary: int  # tokens


@dataclass(frozen=True, slots=True)
class Own:
    """A server to start and to stop."""

    target: Path
    draft: Path
    max_requests: int
    flags: Sequence[str]  # SGLang's, after ours
    log: Path

    def limits(self) -> Limits:
        """As the checkpoints say, before the server is started.

        Raises:
            CheckpointError: the draft's config cannot be read.
        """
        config = _config(self.target)
        gamma = read_draft_config(self.draft).gamma
        return Limits(
            gamma, self.max_requests, config.get("max_position_embeddings", 1 << 20), None
        )

    @contextmanager
    def reach(self, tick: Callable[[], None]) -> Iterator[Reached]:
        """Start it, wait until it answers, stop it on every way out.

        Raises:
            ServerError, RequestError, TraceError, AttachError
        """
        with tempfile.TemporaryDirectory(prefix="sglang-dspark-profile-") as folder:
            settings = Path(folder) / "settings.toml"
            settings.write_text(
                f'cost_table = "off"\n[trace]\ndirectory = {json.dumps(folder)}\n'
                f"max_mb = {TRACE_MB}\nreference = true\n",
                encoding="utf-8",
            )
            server = Server(
                [
                    *("--model-path", str(self.target), "--speculative-algorithm", "DSPARK"),
                    *("--speculative-draft-model-path", str(self.draft)),
                    *("--max-running-requests", str(self.max_requests)),
                    # DSPARK alone would hold back a prefill until several requests are free.
                    *("--min-free-slots-delay", "1", "--log-level-http", "warning"),
                    *self.flags,
                ],
                log=self.log,
                environment={
                    "SGLANG_DSPARK_CONFIG": str(settings),
                    "SGLANG_RAGGED_VERIFY_MODE": "compact",
                },
            )
            try:
                server.launch()
                server.wait(START_TIMEOUT_S, tick)
                with closing(Client(server.url)) as client:
                    yield _reach(client, server.url, Path(folder), _record(client))
            finally:
                server.stop()


@dataclass(frozen=True, slots=True)
class Attached:
    """A server that somebody else runs, on this machine."""

    url: str
    traces: Path  # where it writes its traces

    def limits(self) -> Limits:
        """Raises AttachError if nobody answers, or not our worker."""
        with closing(Client(self.url)) as client:
            return _limits(client, self._record(client))

    @contextmanager
    def reach(self, tick: Callable[[], None]) -> Iterator[Reached]:
        """Take it over; its settings are put back on every way out.

        Raises:
            AttachError, RequestError, TraceError
        """
        with closing(Client(self.url)) as client:
            record = self._record(client)
            if record["trace"] is not None:
                raise AttachError(
                    f"{self.url} is writing the trace {record['trace']}; end it first "
                    '(POST /set_internal_state {"server_args": {"dspark_trace": null}})'
                )
            try:
                yield _reach(client, self.url, self.traces, record)
            finally:
                with suppress(httpx.HTTPError, RequestError):
                    client.post("/set_internal_state", {"server_args": choice_before(record)})

    def _record(self, client: Client) -> Mapping[str, Any]:
        try:
            return _record(client)
        except httpx.HTTPError as error:
            raise AttachError(f"--attach {self.url}: no answer ({error})") from None


def _record(client: Client) -> Mapping[str, Any]:
    """The worker's record, which only our worker writes like this."""
    try:
        record = client.worker_record()
    except (KeyError, IndexError, TypeError):
        record = {}
    if "server" not in record or not str(record.get("worker", "")).startswith("sglang-dspark"):
        raise AttachError(
            "the server does not run our DSPARK worker: start it with --speculative-algorithm "
            "DSPARK, without SGLANG_DSPARK_DISABLE or SGLANG_PLUGINS"
        )
    return record


def _reach(client: Client, url: str, traces: Path, record: Mapping[str, Any]) -> Reached:
    pins = Pins(client, traces)
    pins.prepare(record["gamma"])
    model = Path(str(client.server_info().get("model_path", "")))
    vocabulary = _config(model).get("vocab_size", UNKNOWN_VOCABULARY)
    return Reached(url, pins, _limits(client, record), dict(record["server"]), vocabulary)


def _limits(client: Client, record: Mapping[str, Any]) -> Limits:
    info = client.server_info()
    running = info["internal_states"][0]["effective_max_running_requests_per_dp"]
    return Limits(
        gamma=record["gamma"],
        max_requests=running,
        context_len=info["max_req_input_len"],
        capacity=info["max_total_num_tokens"],
    )


def _config(model: Path) -> dict[str, Any]:
    """config.json of a model in a folder; empty where there is none."""
    try:
        return dict(json.loads((model / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
