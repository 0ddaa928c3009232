"""Recording traces for a calibration: prompts to a server in cap-accept, every block judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.load import Ask, run_load
from sglang_dspark.profiling.server import Server
from sglang_dspark.profiling.sweep.prompts import PromptPool
from sglang_dspark.settings import VARIABLE

LOADS_PER_SLOT = 4  # requests sent together, times the concurrency
TRACE_MB = 4096  # a trace of our own server may grow to
GREEDY = "-greedy"  # behind a domain's name: its prompts at temperature 0
# No table is measured at the start, and none trims: what is recorded is the whole block anyway.
SETTINGS = 'cost_table = "off"\n[trace]\ndirectory = {directory}\nmax_mb = {max_mb}\n'


class RecordError(RuntimeError):
    """The server cannot record what a calibration needs; the text says what to change."""


class Progress(Protocol):
    def stage(self, text: str, turns: int | None = None) -> None:
        """A new stage has begun, of a number of steps where that is known."""

    def tick(self) -> None:
        """Still waiting."""

    def advance(self) -> None:
        """One step of the stage is over."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """What is asked until when."""

    prompts: Mapping[str, Sequence[str]]  # by domain
    rounds: int  # judged blocks per domain
    folder: Path  # where the server writes its traces
    concurrency: int = 8
    max_new_tokens: int = 128
    temperature: float = 1.0
    greedy: bool = True  # each prompt once more at temperature 0, for the report only

    def files(self) -> dict[str, Path]:
        """The trace of each domain, those at temperature 0 last."""
        names = [*self.prompts, *(f"{name}{GREEDY}" for name in self.prompts if self.greedy)]
        return {name: self.folder / f"{name}.jsonl" for name in names}


def rounds_per_domain(min_rounds: int, num_domains: int, max_new_tokens: int) -> int:
    """Blocks to record of each domain so that the held-out half is large enough.

    The halves are made of whole requests, so they differ by up to one request.
    """
    return math.ceil(2 * min_rounds / num_domains) + 2 * max_new_tokens


def recording_server(
    target: Path, draft: Path, plan: RecordPlan, *, flags: Sequence[str], log: Path
) -> Server:
    """A server of our own that starts in cap-accept and may write traces into `plan.folder`."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    settings = plan.folder / "settings.toml"
    quoted = "'" + str(plan.folder.resolve()) + "'"
    settings.write_text(SETTINGS.format(directory=quoted, max_mb=TRACE_MB), encoding="utf-8")
    command = [
        *("--model-path", str(target), "--speculative-draft-model-path", str(draft)),
        *("--speculative-algorithm", "DSPARK", "--sleep-on-idle", "--min-free-slots-delay", "1"),
        *("--max-running-requests", str(plan.concurrency), *flags),
    ]
    environment = {"SGLANG_RAGGED_VERIFY_MODE": "cap-accept", VARIABLE: str(settings.resolve())}
    return Server(command, log=log, environment=environment)


def record_traces(url: str, plan: RecordPlan, progress: Progress) -> dict[str, Path]:
    """Send prompts until every domain has enough judged blocks; the files written, by name.

    What is changed on the server is put back afterwards.

    Raises:
        RecordError: not our worker, no trace where it was expected, or every request failed.
        RequestError: the server refuses a setting, as one without a folder for traces does.
    """
    with closing(Client(url)) as client, _put_back(client):
        for domain, texts in plan.prompts.items():
            _record_domain(url, client, plan, (domain, texts), progress)
            if plan.greedy:
                _record_greedy(url, client, plan, (domain, texts), progress)
    for name, file in plan.files().items():
        if not file.exists():
            raise RecordError(
                f"{name}: the server wrote no {file}; does --trace-directory name the "
                "folder that its [trace] directory names, on this machine?"
            )
    return plan.files()


def _record_domain(
    url: str,
    client: Client,
    plan: RecordPlan,
    domain: tuple[str, Sequence[str]],
    progress: Progress,
) -> None:
    """Prompts over and over, each pass with other ends, until there are enough blocks."""
    name, texts = domain
    progress.stage(f"Recording {name}, {plan.rounds:,} blocks", plan.rounds)
    pool, size = PromptPool({name: texts}), LOADS_PER_SLOT * plan.concurrency
    sampling = {"temperature": plan.temperature, "max_new_tokens": plan.max_new_tokens}
    start, sent, seen = _judged(client), 0, 0
    with _tracing(client, name):
        while seen < plan.rounds:
            prompts = [str(p.content) for p in pool.take(sent, size)]
            rids = [f"calibrate-{name}-{sent + i}" for i in range(size)]
            _send(url, prompts, rids, sampling, plan.concurrency)
            sent += size
            now = _judged(client) - start
            for _ in range(min(now, plan.rounds) - seen):
                progress.advance()
            seen = now


def _record_greedy(
    url: str,
    client: Client,
    plan: RecordPlan,
    domain: tuple[str, Sequence[str]],
    progress: Progress,
) -> None:
    """Every prompt once at temperature 0, or as many as the rounds ask for."""
    name, texts = domain[0] + GREEDY, list(domain[1])
    most = math.ceil(plan.rounds / plan.max_new_tokens) * LOADS_PER_SLOT
    texts, size = texts[:most], LOADS_PER_SLOT * plan.concurrency
    progress.stage(f"Recording {name}, {len(texts)} prompts", len(texts))
    sampling = {"temperature": 0, "max_new_tokens": plan.max_new_tokens}
    with _tracing(client, name):
        for first in range(0, len(texts), size):
            part = texts[first : first + size]
            rids = [f"calibrate-{name}-{first + i}" for i in range(len(part))]
            _send(url, part, rids, sampling, plan.concurrency)
            for _ in part:
                progress.advance()


def _send(
    url: str, prompts: Sequence[str], rids: Sequence[str], sampling: Mapping[str, Any], at_once: int
) -> None:
    asks = [Ask(text, sampling, rid) for text, rid in zip(prompts, rids, strict=True)]
    done = run_load(url, asks, at_once)
    if len(done.errors) == len(asks):
        raise RecordError(f"every request failed: {done.errors[0]}")


def _judged(client: Client) -> int:
    """(request, step) pairs that the server has verified so far."""
    return int(client.worker_record()["verified_requests"])


@contextmanager
def _tracing(client: Client, name: str) -> Iterator[None]:
    _steer(client, dspark_trace=name)
    try:
        yield
    finally:
        _steer(client, dspark_trace=None)


@contextmanager
def _put_back(client: Client) -> Iterator[None]:
    """Cap-accept, whole blocks, every step drafts; afterwards what was there before."""
    try:
        before = client.worker_record()
    except (KeyError, IndexError):
        before = {}
    if not str(before.get("worker", "")).startswith("sglang-dspark"):
        raise RecordError("this server does not run the sglang-dspark worker")
    _steer(
        client,
        dspark_verify_mode="cap-accept",
        dspark_gamma_limit=before["gamma"],
        dspark_no_draft="off",
        dspark_budget_fraction=1.0,
    )
    try:
        yield
    finally:
        pin = {"dspark_budget": before["pinned_drafts"]}
        if before["pinned_fraction"] is not None:
            pin = {"dspark_budget_fraction": before["pinned_fraction"]}
        _steer(
            client,
            dspark_verify_mode=before["mode"],
            dspark_gamma_limit=before["gamma_limit"],
            dspark_no_draft=before["no_draft"],
            **pin,
        )


def _steer(client: Client, **settings: Any) -> None:
    client.post("/set_internal_state", {"server_args": settings})
