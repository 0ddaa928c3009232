"""Requests that the tests send, on top of the client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from sglang_dspark.profiling.client import Client, Completion
from tests.server.servers import Running

Prompt = str | Sequence[int]


def body_of(prompts: Sequence[Prompt], rids: Sequence[str] | None, **sampling: Any) -> dict:
    """Body of one `/generate` call with many prompts, which reach the scheduler together."""
    key = "text" if isinstance(prompts[0], str) else "input_ids"
    body: dict[str, Any] = {key: list(prompts), "sampling_params": sampling}
    if rids is not None:
        body["rid"] = list(rids)
    return body


def many(
    client: Client, prompts: Sequence[Prompt], *, rids: Sequence[str] | None = None, **sampling: Any
) -> list[Completion]:
    """All prompts at once."""
    answers = client.post("/generate", body_of(prompts, rids, **sampling))
    return [Completion(a["text"], tuple(a["output_ids"]), a["meta_info"]) for a in answers]


def in_batches(
    client: Client, prompts: Sequence[Prompt], size: int, **sampling: Any
) -> list[Completion]:
    """`size` prompts at a time."""
    out: list[Completion] = []
    for start in range(0, len(prompts), size):
        out += many(client, prompts[start : start + size], **sampling)
    return out


def tokens_of(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [c.tokens for c in completions]


def stream(url: str, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Events of a streamed answer; leaving the loop early closes the connection."""
    with httpx.stream("POST", url + path, json={**body, "stream": True}, timeout=120) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


@dataclass
class Counted:
    """Worker counters of what ran inside `counting`."""

    before: Mapping[str, Any]
    after: Mapping[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        assert self.after is not None
        return self.after[name] - self.before[name]

    @property
    def histogram(self) -> list[int]:
        assert self.after is not None
        pairs = zip(
            self.after["accepted_histogram"], self.before["accepted_histogram"], strict=True
        )
        return [a - b for a, b in pairs]

    @property
    def reasons(self) -> dict[str, int]:
        """Steps by the planner's reason; those that had none are left out."""
        assert self.after is not None
        before, after = self.before["step_reasons"], self.after["step_reasons"]
        return {r: n - before.get(r, 0) for r, n in after.items() if n > before.get(r, 0)}

    @property
    def accept_length(self) -> float:
        return 1 + self.accepted_drafts / self.verified_requests


@contextmanager
def counting(running: Running) -> Iterator[Counted]:
    wait_until_idle(running)
    counted = Counted(running.client.worker_record())
    yield counted
    wait_until_idle(running)
    counted.after = running.client.worker_record()


def load(running: Running) -> dict[str, Any]:
    """The scheduler's own account: running requests, KV slots that requests hold."""
    answer = httpx.get(f"{running.url}/v1/loads", timeout=30).raise_for_status().json()
    return answer["loads"][0]


def wait_until_idle(running: Running, timeout_s: float = 30) -> None:
    """Until no request runs or waits; the overlap scheduler ends a step after its last answer."""
    deadline = time.monotonic() + timeout_s
    while (now := load(running))["num_running_reqs"] or now["num_waiting_reqs"]:
        assert time.monotonic() < deadline, f"still busy: {now}"
        time.sleep(0.05)
